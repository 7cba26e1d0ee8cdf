"""`mbr-perf run` from request to exit code on recorded runs: everything but the training itself is real."""

import json
import re
import shutil
from pathlib import Path

import pytest

from harness.records.golden import GoldenRecord
from harness.records.goldens import golden_text
from harness.records.metrics import PEAKS, SUMMARY_METRICS
from harness.records.store import read_run
from tests.conftest import golden_of_other_lr

REPLAYS = Path(__file__).parents[1] / "data" / "replay"


@pytest.fixture(name="replayed")
def _replayed(replay, tmp_path):
    """The JSON document of a replayed run and its committed record; both must say the same."""

    def run(name, *arguments, **where):
        answer = replay(name, "--json", *arguments, **where)
        document = json.loads(answer.out)
        assert document["exit_code"] == answer.code
        return document, read_run(document["run_dir"])

    return run


@pytest.fixture(name="golden")
def _golden(replayed, make_golden, tmp_path):
    """A golden with the figures of a recorded run, multiplied: ``golden("ok", tflops_per_gpu=2)``, whose steps are half as long."""

    def write(name, where=REPLAYS, **factors):
        document, record = replayed(name, folder=where)
        metrics = document["metrics"]
        figures = {metric: metrics[metric]["median"] for metric in SUMMARY_METRICS}
        figures |= {metric: metrics[metric]["value"] for metric in PEAKS if metrics[metric]}
        assert set(factors) <= set(figures)
        path = tmp_path / "golden.json"
        factors.setdefault("step_time_s", 1 / factors.get("tflops_per_gpu", 1.0))
        values = {metric: value * factors.get(metric, 1.0) for metric, value in figures.items()}
        path.write_text(golden_text(make_golden(record, values)))
        return path

    return write


def test_a_good_run_passes_and_says_that_nothing_was_compared_or_predicted(replayed, replay):
    answer, details = replay("ok"), replay("ok", "-v").out
    assert answer.code == 0
    assert re.match("OK: 64.1 ms .* 4.77 MiB on rank 0, no golden", answer.out)
    assert "\nNot compared: " in details and "Not predicted: replayed" in details
    document, record = replayed("ok")
    assert record.prediction is None
    assert document["prediction"] == {"reason": record.no_prediction}
    assert record.no_prediction.startswith("replayed: ")


def test_the_request_is_a_detail_and_line_1_alone_is_quiet(replay):
    usual, quiet, whole = replay("ok"), replay("ok", "-q"), replay("ok", "-v")
    assert [answer.out.count("Fingerprint ") for answer in (usual, quiet, whole)] == [0, 0, 1]
    assert quiet.out.splitlines() == usual.out.splitlines()[:1] == whole.out.splitlines()[:1]
    assert len(usual.out.splitlines()) <= 25
    assert "recompute core_attn,layernorm" in usual.err
    assert (replay("ok", "-q", "--json").code, replay("ok", "-q", "-v").code) == (2, 2)


def test_the_figures_are_those_of_the_recorded_steps_and_the_folder_holds_request_plan_and_record(replayed):
    document, record = replayed("ok")
    slowest = [max(rank.steps[step].seconds for rank in record.ranks) for step in range(2, 8)]
    faster, slower = sorted(slowest)[2:4]
    metrics = document["metrics"]
    assert metrics["step_time_s"]["median"] == pytest.approx((faster + slower) / 2)
    assert metrics["step_time_s"]["window"] == [2, 8]
    tokens_per_s = (4 * 256 / 2 / faster + 4 * 256 / 2 / slower) / 2
    assert metrics["tokens_per_s_per_gpu"]["median"] == pytest.approx(tokens_per_s)
    assert metrics["peak_allocated_bytes"]["value"] == record.ranks[0].memory.max_allocated_bytes
    run_dir = Path(document["run_dir"])
    names = {path.name for path in run_dir.iterdir()}
    assert names == {"spec.json", "plan.txt", "record.json", "harness.json", "ranks", "logs"}
    assert json.loads((run_dir / "spec.json").read_text()) == document["spec"]
    assert "# replay of" in (run_dir / "plan.txt").read_text()
    assert record.status == "ok"


def test_out_of_memory_is_blamed_on_the_rank_that_ran_out(replayed):
    document, record = replayed("oom")
    assert (document["outcome"], document["exit_code"], record.status) == ("oom", 4, "oom")
    for named in ("rank 0 (stage 0) ", " forward_backward of step 2, ", " 2.31 GiB: OutOfMemoryError: CUDA "):
        assert named in record.failure
    assert document["metrics"]["step_time_s"] is None
    assert [document["metrics"][name]["rank"] for name in PEAKS] == [0, 0, 0]


def test_a_loss_that_is_no_number_fails_the_run(replayed):
    document, record = replayed("non_finite_loss")
    assert (document["outcome"], document["exit_code"], record.status) == ("failed", 3, "failed")
    assert record.failure == (
        "rank 1 (stage 1) failed in optimizer_step of step 4: NonFiniteLossError: loss is nan at step 4"
    )


@pytest.mark.parametrize("seconds", ["NaN", "Infinity", "1e999", '"0.1"', "-0.1"])
def test_a_step_that_took_no_time_that_there_is_fails_the_run(replayed, tmp_path, seconds):
    shutil.copytree(REPLAYS / "ok", tmp_path / "ok")
    path = tmp_path / "ok" / "ranks" / "rank_001.json"
    changed = re.sub(r'("step": 5,\s+"seconds": )[0-9.e-]+', rf"\g<1>{seconds}", path.read_text())
    assert changed != path.read_text()
    path.write_text(changed)
    document, record = replayed("ok", folder=tmp_path)
    assert (document["outcome"], document["exit_code"], record.status) == ("failed", 3, "failed")
    assert "rank_001.json" in " ".join(record.notes)


def test_ranks_without_a_step_are_inconclusive_where_there_is_a_golden(replayed, golden, tmp_path):
    shutil.copytree(REPLAYS / "ok", tmp_path / "ok")
    for path in (tmp_path / "ok" / "ranks").glob("rank_*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"steps": []}))
    document, _ = replayed("ok", "--golden_values_path", golden("ok"), folder=tmp_path)
    assert (document["exit_code"], document["outcome"]) == (6, "inconclusive")
    assert document["metrics"]["step_time_s"] is None


def test_a_killed_rank_is_named_and_its_steps_are_kept(replayed):
    document, record = replayed("killed")
    assert (document["outcome"], document["exit_code"]) == ("failed", 3)
    assert record.failure == "rank 1 (stage 1) failed after step 5: Signal 9 (SIGKILL) received by PID 1001"
    assert [len(rank.steps) for rank in record.ranks] == [6, 6]
    assert [rank.coordinates.pp for rank in record.ranks] == [0, 1]
    assert document["metrics"]["step_time_s"]["n"] == 4


@pytest.mark.parametrize(
    ("factors", "options", "code", "outcome"),
    [
        ({}, (), 0, "pass"),
        ({"tflops_per_gpu": 2.0}, (), 5, "regression"),
        ({"tflops_per_gpu": 2.0}, ("--timing_threshold", "0.6"), 0, "pass"),
        ({"tflops_per_gpu": 0.5}, (), 0, "improvement"),
        ({"tflops_per_gpu": 0.5}, ("--fail_on_improvement",), 7, "improvement"),
        ({"peak_allocated_bytes": 0.5}, (), 5, "regression"),
        ({"peak_allocated_bytes": 0.75}, ("--memory-threshold", "0.5"), 0, "pass"),
    ],
)
def test_the_verdict_is_the_exit_code(replayed, golden, factors, options, code, outcome):
    document, _ = replayed("ok", "--golden_values_path", golden("ok", **factors), *options)
    assert (document["exit_code"], document["outcome"]) == (code, outcome)
    assert {"metric", "current", "golden", "change", "threshold", "verdict"} <= set(document["comparison"][0])


def test_a_golden_that_is_required_must_be_there(replay, tmp_path):
    (tmp_path / "none").mkdir()
    required = replay("ok", "--require_golden")
    assert required.code == 6
    assert required.out.startswith("INCONCLUSIVE: no golden ")
    assert replay("ok", "--golden_values_path", tmp_path / "none").code == 6
    before = {*(tmp_path / "results" / "runs").iterdir()}
    nowhere = replay("ok", "--golden_values_path", tmp_path / "nowhere")
    (kept,) = {*(tmp_path / "results" / "runs").iterdir()} - before
    assert (nowhere.code, f" {kept}" in nowhere.err, read_run(kept).status) == (2, True, "ok")


def test_other_software_is_inconclusive_until_accepted(replay, golden):
    path = golden("ok")
    held = GoldenRecord.model_validate_json(path.read_text())
    versions = held.measured_on.versions | {"megatron-core": "0.15.0"}
    measured_on = held.measured_on.model_copy(update={"versions": versions})
    path.write_text(golden_text(held.model_copy(update={"measured_on": measured_on})))
    unlike = replay("ok", "--golden_values_path", path)
    assert unlike.code == 6
    assert ": --accept_difference megatron-core" in unlike.out
    assert replay("ok", "--golden_values_path", path, "--accept_difference", "megatron-core").code == 0


def test_a_golden_of_an_earlier_recipe_point_is_inconclusive_in_run_and_in_compare(
    replay, replayed, mbr_perf, golden, tmp_path
):
    folder = tmp_path / "goldens"
    (folder / "cpu").mkdir(parents=True)
    path = folder / "cpu" / "replayed.pretrain.fp32.2gpu.core_attn,layernorm.json"
    path.write_text(golden_of_other_lr(golden("ok")))
    document, _ = replayed("ok", "--golden_values_path", folder)
    compared = mbr_perf("compare", document["run_id"], folder, "--results_dir", tmp_path / "results", "--json")
    for code, message in ((document["exit_code"], document), (compared.code, json.loads(compared.out))):
        assert (code, message["outcome"]) == (6, "inconclusive")
        assert [(d["name"], d["golden"], d["current"]) for d in message["differences"]] == [
            ("optimizer.lr", "0.5", "0.0001")
        ]
        assert str(folder) in message["note"]
    shown = replay("ok", "--golden_values_path", folder).out
    assert "Not the same experiment: " in shown
    assert ": optimizer.lr: golden 0.5, here 0.0001\n" in shown
    assert shown.count(str(folder)) == 1


def test_too_few_steps_are_inconclusive(replayed, golden):
    document, _ = replayed("truncated", "--golden_values_path", golden("ok"))
    assert (document["exit_code"], document["outcome"]) == (6, "inconclusive")
    assert "5 of 6 measured steps " in json.dumps(document["comparison"])


@pytest.mark.slow
def test_a_replayed_run_is_no_golden(replayed, mbr_perf, tmp_path):
    document, _ = replayed("ok")
    refused = mbr_perf(
        "golden", "promote", document["run_dir"], "--reason", "first", "--golden_dir", tmp_path / "golden"
    )
    assert refused.code == 2
    assert "replay" in refused.err
    assert not (tmp_path / "golden").exists()


def test_a_recording_of_other_settings_is_refused(replay, tmp_path):
    answer = replay("ok", "--recompute_modules", "none")
    assert (answer.code, "core_attn" in answer.err, (tmp_path / "results").exists()) == (2, True, False)


def test_a_committed_run_is_never_overwritten(replay, tmp_path):
    assert replay("ok", "--run_dir", tmp_path / "mine").code == 0
    before = (tmp_path / "mine" / "record.json").read_bytes()
    again = replay("killed", "--run_dir", tmp_path / "mine")
    assert again.code == 2
    assert "already holds a run" in again.err
    assert (tmp_path / "mine" / "record.json").read_bytes() == before


def test_repeats_are_runs_of_their_own_judged_together(replayed, tmp_path):
    document, _ = replayed("ok", "--repeats", "3")
    assert document["num_runs"] == 3
    assert len(list((tmp_path / "results" / "runs").iterdir())) == 3
    document, _ = replayed("killed", "--repeats", "3")
    assert (document["num_runs"], document["exit_code"]) == (1, 3)


def test_a_recorded_run_can_be_compared_later(replayed, mbr_perf, golden, tmp_path):
    path = golden("ok", tflops_per_gpu=2.0)
    document, _ = replayed("ok")
    later = mbr_perf("compare", document["run_id"], path, "--results_dir", tmp_path / "results")
    assert later.code == 5
