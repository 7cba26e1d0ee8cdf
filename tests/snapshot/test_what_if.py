"""`mbr-perf snapshot --what_if`: the recorded requests under other settings, and on another device."""

import json

import pytest

from harness.app import main
from harness.units import GIB, MIB
from tests.snapshot_pickles import CORE_ATTN, MLP, Allocator, holes, written


@pytest.fixture(name="asked")
def _asked(tmp_path, capsys):
    """Ask about a snapshot; the answer, or with another exit code what is said."""

    def ask(snapshot, *arguments, code=0):
        with pytest.raises(SystemExit) as ended:
            main(["snapshot", str(written(tmp_path / "a.pickle", snapshot)), *arguments, "--json"])
        captured = capsys.readouterr()
        assert ended.value.code == code, captured.err
        return json.loads(captured.out)["what_if"] if code == 0 else json.loads(captured.out)

    return ask


def in_mib(found, *names):
    return [tuple(row[name] // MIB for name in names) for row in found["rows"]]


def test_the_recorded_requests_are_replayed_under_each_setting(asked):
    settings = ("expandable_segments:True", "max_split_size_mb:64")
    found = asked(holes().snapshot(), *(word for each in settings for word in ("--what_if", each)))
    assert [row["settings"] for row in found["rows"]] == ["", *settings]
    assert (found["num_requests"], found["notes"], found["device_bytes"]) == (121, [], None)
    assert in_mib(found, "allocated_bytes", "reserved_bytes", "fits_bytes") == [
        (4000, 6048, 6048), (4000, 6060, 4000), (4000, 10048, 4000),
    ]  # fmt: skip


def test_line_1_begins_with_what_needs_least(tmp_path, capsys):
    path = str(written(tmp_path / "a.pickle", holes().snapshot()))
    settings = ("max_split_size_mb:64", "expandable_segments:True")
    with pytest.raises(SystemExit):
        main(["snapshot", path, *(word for each in settings for word in ("--what_if", each)), "-q"])
    parts = capsys.readouterr().out.split("; ")
    assert [part.rpartition(": ")[0] for part in parts] == [
        "Best: expandable_segments:True", "max_split_size_mb:64", "defaults",
    ]  # fmt: skip


def test_the_first_request_that_fails_on_the_device_is_named(asked):
    found = asked(holes().snapshot(), "--what_if", "expandable_segments:True", "--device_gib", "5")
    native, expandable = (row["failure"] for row in found["rows"])
    assert expandable is None
    assert (native["number"], native["request_bytes"], native["module"]) == (121, 2 * GIB, "mlp")
    assert native["allocated_then_bytes"] == 1600 * MIB and native["reserved_then_bytes"] == 4000 * MIB


def test_a_history_that_begins_in_mid_run_says_what_it_cannot_know(asked):
    allocator = Allocator()
    early = [allocator.alloc(30 * MIB, MLP) for _ in range(10)]
    allocator.trace.clear()
    late = [allocator.alloc(50 * MIB, CORE_ATTN) for _ in range(4)]
    for block in (*early[:5], *late[:2]):
        allocator.free(block)
    found = asked(allocator.snapshot(), "--device_gib", "0.25")
    assert "mid-run" in found["notes"][0] and found["num_requests"] == 4
    assert in_mib(found, "allocated_bytes", "reserved_bytes") == [(500, 500)]
    assert found["rows"][0]["failure"]["number"] == 0  # not even what was there before


def layers(count, *, first=0):
    """A forward pass of ``count`` layers, then what its backward passes free. In the history from layer ``first``."""
    allocator, kept = Allocator(), []
    for layer in range(count):
        if layer == first:
            allocator.trace.clear()
        output = allocator.alloc(30 * MIB, MLP)  # of the module, freed at once
        kept.append([allocator.alloc(100 * MIB, MLP), allocator.alloc(50 * MIB, CORE_ATTN)])
        allocator.free(output)
    for blocks in reversed(kept):
        for block in reversed(blocks):
            allocator.free(block)
    return allocator.snapshot()


def test_what_a_recomputed_module_saved_lives_for_one_layer_at_a_time_and_one_that_saves_nothing_is_named(asked):
    found = asked(layers(4), "--without", "mlp", "--without", "mlp,core_attn")
    assert [row["without"] for row in found["rows"]] == ["", "mlp", "mlp,core_attn"]
    # Of four layers the last keeps its 100 MiB until its backward pass; then each has its own again.
    assert in_mib(found, "allocated_bytes") == [(630,), (330,), (180,)]
    found = asked(layers(2), "--without", "moe", "--device_gib", "0.1")
    assert "moe" in found["notes"][0]
    assert found["rows"][1]["failure"]["number"] == 2


def test_private_pools_and_settings_without_effect_are_named(asked):
    allocator = Allocator()
    allocator.alloc(30 * MIB, MLP, pool=(1, 0))
    notes = asked(allocator.snapshot(), "--what_if", "garbage_collection_threshold:0.8")["notes"]
    assert [
        word for word in ("private pools", "garbage_collection_threshold") if not any(word in note for note in notes)
    ] == []


def test_recorded_settings_are_the_first_row(asked):
    snapshot = holes().snapshot()
    snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    assert [row["settings"] for row in asked(snapshot, "--device_gib", "80")["rows"]] == ["expandable_segments:True"]


def test_a_snapshot_without_a_history_and_modules_of_a_predicted_step_are_refused(asked):
    snapshot = holes().snapshot() | {"device_traces": []}
    assert "no history" in asked(snapshot, "--device_gib", "80", code=2)["error"]
    answer = asked(layers(2) | {"predicted": "none, stage 0"}, "--without", "mlp", code=2)
    assert "predicted" in answer["error"] and "--recompute" in answer["remedy"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--what_if", "expandable_segments:true"), "--what_if=expandable_segments:true: "),
        (("--what_if", "expandable:True"), "--what_if=expandable:True: "),
        (("--what_if", "backend:cudaMallocAsync"), "--what_if=backend:cudaMallocAsync: "),
        (("--without", "mlp,attn"), "--without mlp,attn: "),
        (("--device_gib", "-1"), "--device_gib -1: "),
        (("--device_gib", "nan"), "--device_gib nan: "),
    ],
)
def test_a_bad_value_is_refused_with_its_place(asked, arguments, said):
    answer = asked(holes().snapshot(), *arguments, code=2)
    assert answer["error"].startswith(said) and answer["remedy"]
