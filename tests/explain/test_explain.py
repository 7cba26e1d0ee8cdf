"""`mbr-perf explain`: from references to an answer."""

import json

import pytest

PUBLISHED = "h100/llama3_70b.sft.fp8_cs.32gpu.core_attn"


@pytest.mark.slow
def test_a_run_is_compared_with_the_stored_golden_of_its_settings(mbr_perf, run):
    done = mbr_perf("explain", run("a", seconds=2.51), "-v")
    assert done.code == 0
    assert f"Reference {PUBLISHED} (golden, published elsewhere)" in done.out.splitlines()
    assert (done.out.count("Caveat, reference: "), "Next: " in done.out, "\n* " in done.out) == (6, True, True)


def test_a_run_is_compared_with_another_run(mbr_perf, run, tmp_path):
    ours = run("a", seconds=3.0, provenance={"driver_version": "570.1"})
    run("20260102T030405Z-b", seconds=2.5)
    done = mbr_perf("explain", ours, "20260102T030405Z-b", "--results_dir", tmp_path / "results")
    assert " 1. another driver" in done.out.splitlines()
    assert "likeliest cause: " not in done.out.partition("\n")[0]  # a driver explains no 20 %
    assert "    driver_version: 570.1, reference: 550.54.15" in done.out.splitlines()


def test_a_build_that_recomputes_something_else_is_the_answer(mbr_perf, run):
    built = "the built layers recompute nothing, expected core_attn in 80 layers"
    done = mbr_perf("explain", run("a", seconds=3.0, suspect=(built,)), run("b", seconds=2.5))
    assert (built in done.out.partition("\n")[0], "bisect RUN --metric recompute" in done.out) == (True, True)


def test_a_throttled_replay_names_the_throttled_gpu(mbr_perf, replay, tmp_path):
    assert replay("throttled", "--json").code == 0
    (run_dir,) = (tmp_path / "results" / "runs").iterdir()
    done = mbr_perf("explain", run_dir, PUBLISHED)
    assert "    throttling: GPU 1 of node0: hw_thermal_slowdown, reference: not recorded" in done.out.splitlines()


def test_the_document_holds_causes_in_order(mbr_perf, run):
    ours = run("a", seconds=3.0, provenance={"driver_version": "570.1", "environment": {"NCCL_ALGO": "Ring"}})
    document = json.loads(mbr_perf("explain", ours, run("b"), "--json").out)
    assert (document["schema_version"], document["exit_code"]) == (1, 0)
    assert [(cause["rank"], cause["name"], cause["can_explain"]) for cause in document["causes"]] == [
        (1, "another driver", True)
    ]
    assert document["causes"][0]["differences"] == [
        {"group": "driver", "name": "driver_version", "run": "570.1", "reference": "550.54.15", "source": None}
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["nothing"], "neither a golden nor a run"), ([PUBLISHED], "a golden alone")],
)
def test_a_missing_run_and_a_golden_alone_are_refused(mbr_perf, run, tmp_path, arguments, message):
    words = [run("a") if word == "run" else word for word in arguments]
    done = mbr_perf("explain", *words, "--results_dir", tmp_path)
    assert (done.code, message in done.err) == (2, True)


def test_two_goldens_are_compared_as_a_run_is(mbr_perf, tmp_path):
    names = [f"cpu/llama3_8b.pretrain.fp32.2gpu.{setting}" for setting in ("mlp", "core_attn,layernorm")]
    document = json.loads(mbr_perf("explain", *names, "--json").out)
    assert {cause["name"] for cause in document["causes"]} >= {"another recompute setting"}
    peak = next(row for row in document["metrics"] if row["metric"] == "peak_allocated_bytes")
    assert peak["change"] == pytest.approx(121136260 / 142884132 - 1)
    assert mbr_perf("explain", *names).out.startswith("Peak allocated ")


def test_without_a_golden_the_message_names_the_settings(mbr_perf, run, tmp_path):
    done = mbr_perf("explain", run("a"), "--golden_dir", tmp_path)
    assert (done.code, "no golden" in done.err) == (2, True)


def test_a_log_is_named_as_a_log_and_nobody_is_told_to_delete_it(mbr_perf, tmp_path):
    log = tmp_path / "train.log"
    log.write_text("iteration 1\n")
    answer = mbr_perf("explain", log, log)
    assert (answer.code, "mbr-perf compare" in answer.err, "delete" in answer.err) == (2, True, False)
