"""`mbr-perf golden export`: goldens and runs as golden values of Megatron-Bridge, and back."""

import json
import re

import pytest

from harness.compare.figures import window_of
from harness.foreign.golden import read_foreign_golden
from harness.judge.compare import WindowOptions
from harness.records.goldens import golden_text
from harness.records.store import write_record
from tests.imports.logs import bridge_log, memory_gb

RUN_ID = "20260102T030405Z-llama3_70b-0a1b2c3d"
VALUES = {
    "tflops_per_gpu": 709.93, "step_time_s": 2.5, "peak_allocated_bytes": 58_803_123_456,
    "peak_reserved_bytes": 62_113_999_999,
}  # fmt: skip


@pytest.fixture(name="golden")
def _golden(tmp_path, make_record, make_golden):
    def write(values, **changes):
        path = tmp_path / "ours.json"
        path.write_text(golden_text(make_golden(make_record(), values, **changes)))
        return path

    return write


def test_a_golden_is_read_back_to_the_same_values(mbr_perf, golden, tmp_path):
    answer = mbr_perf("golden", "export", golden(VALUES, max_steps=40), "-o", tmp_path / "bridge.json")
    assert (answer.code, answer.out) == (0, f"Written: {tmp_path / 'bridge.json'}\n")
    read = read_foreign_golden(tmp_path / "bridge.json")
    counted = window_of(read, WindowOptions()).iterations
    assert (len(read.steps), counted) == (40, tuple(range(29, 41)))
    assert {read.steps[number].tflops_per_gpu for number in counted} == {709.93}
    assert {read.steps[number].step_time_s for number in counted} == {2.5}
    assert read.memory == {"max_allocated_bytes": 58_803_123_456, "max_reserved_bytes": 62_113_999_999}


def test_peaks_of_a_whole_run_are_compared_with_those_of_the_whole_log(mbr_perf, golden, tmp_path):
    mbr_perf("golden", "export", golden(VALUES), "-o", tmp_path / "bridge.json")
    reports = [
        (after, memory_gb(0, after, max_allocated=peak, max_reserved=62.1)) for after, peak in ((1, 45.0), (2, 58.8))
    ]
    (tmp_path / "run.log").write_text(bridge_log([709.93] * 50, memory=reports))
    answer = mbr_perf("compare", tmp_path / "run.log", tmp_path / "bridge.json", "--json")
    found = {row["metric"]: row for row in json.loads(answer.out)["comparison"]}
    assert (answer.code, found["peak_allocated_bytes"]["current"]) == (0, 58_800_000_000)
    assert found["peak_allocated_bytes"]["verdict"] == "pass"


def test_a_run_is_exported_step_by_step(mbr_perf, tmp_path, make_record):
    folder = tmp_path / "results" / "runs" / RUN_ID
    folder.mkdir(parents=True)
    write_record(folder, make_record(seconds=2.5, run_id=RUN_ID))
    answer = mbr_perf("golden", "export", RUN_ID, "--results_dir", tmp_path / "results")
    (tmp_path / "bridge.json").write_text(answer.out)
    read = read_foreign_golden(tmp_path / "bridge.json")
    assert len(read.steps) == 50
    assert read.steps[50].step_time_s == pytest.approx(2.5)
    assert read.steps[50].tflops_per_gpu == pytest.approx(709.93, rel=1e-3)
    assert [read.steps[number].loss for number in (1, 2, 50)] == pytest.approx([11.0, 10.9, 6.1])
    assert read.memory["max_allocated_bytes"] == 58_000_000_000


def test_a_run_or_golden_with_an_impossible_figure_is_not_exported(mbr_perf, golden, tmp_path, make_record):
    folder = tmp_path / "results" / "runs" / RUN_ID
    folder.mkdir(parents=True)
    write_record(folder, make_record(seconds=2.5, run_id=RUN_ID, suspect=("GPU 3 of node0 was throttled",)))
    of_run = mbr_perf("golden", "export", RUN_ID, "--results_dir", tmp_path / "results")
    of_golden = mbr_perf("golden", "export", golden(VALUES | {"step_time_s": 1e-7}))
    assert [(answer.code, answer.out) for answer in (of_run, of_golden)] == [(2, "")] * 2
    assert "golden: GPU 3 of node0 was throttled" in of_run.err


def test_a_golden_without_a_time_is_refused(mbr_perf, golden):
    answer = mbr_perf("golden", "export", golden({"peak_allocated_bytes": 58_803_123_456}))
    assert (answer.code, answer.out) == (2, "")


def _compared(mbr_perf, log, golden):
    answer = mbr_perf("compare", log, golden, "--json")
    return answer.code, json.loads(answer.out)


@pytest.mark.parametrize(("tflops", "code"), [(709.93, 0), (600.0, 5)])
def test_a_log_is_compared_with_a_golden_of_ours_as_with_its_export(mbr_perf, golden, tmp_path, tflops, code):
    ours = golden(VALUES, max_steps=40)
    mbr_perf("golden", "export", ours, "-o", tmp_path / "bridge.json")
    log = bridge_log([tflops] * 50, memory=[(1, memory_gb(0, 1, max_allocated=58.8, max_reserved=62.1))])
    (tmp_path / "run.log").write_text(log.replace("batch size:   128", "batch size:    32"))
    found, document = _compared(mbr_perf, tmp_path / "run.log", ours)
    exported, other = _compared(mbr_perf, tmp_path / "run.log", tmp_path / "bridge.json")
    assert (found, exported) == (code, code)
    assert (document["comparison"], document["window"]) == (other["comparison"], other["window"])
    assert (document["golden"]["format"], document["golden"]["num_steps"]) == ("mbr-perf", 40)


def test_a_log_of_a_job_of_another_size_proves_nothing(mbr_perf, golden, tmp_path):
    log = tmp_path / "run.log"
    log.write_text("using world size: 8, data-parallel size: 1\n" + bridge_log([709.93] * 50))
    code, document = _compared(mbr_perf, log, golden(VALUES))
    assert (code, document["outcome"]) == (6, "inconclusive")
    assert any(re.match("8 GPUs, .* 32", doubt) for doubt in document["doubts"])


def test_a_log_is_not_compared_with_a_golden_without_speed(mbr_perf, golden, tmp_path):
    log = tmp_path / "run.log"
    log.write_text(bridge_log([709.93] * 50))
    path = golden({"peak_allocated_bytes": 1000})
    answer = mbr_perf("compare", log, path)
    assert (answer.code, str(path) in answer.err) == (2, True)
