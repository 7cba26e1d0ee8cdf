"""Speed says something only for the same number of GPUs and the same batch, and for a job that trained."""

import re
from pathlib import Path

import pytest

from harness.compare.figures import judge_log
from harness.compare.foreign import OF_BRIDGE
from harness.foreign.golden import ForeignGolden, GoldenStep, read_foreign_golden
from harness.foreign.log import ForeignLog, Iteration
from harness.judge.compare import WindowOptions
from harness.judge.gate import Verdict
from harness.records.golden import golden_text


def job(num_gpus=32, batch=128, seconds=2.5):
    """A log of twenty iterations without throughput."""
    rows = (
        Iteration(number, f"a.log:{number}", step_time_s=seconds, global_batch_size=batch) for number in range(1, 21)
    )
    return ForeignLog("megatron-lm", ("a.log",), tuple(rows), total=20, world_size=num_gpus, ended=True)


def reference(**stated):
    steps = dict.fromkeys(range(1, 21), GoldenStep(step_time_s=2.5, tflops_per_gpu=stated.pop("tflops", None)))
    return ForeignGolden(Path("g.json"), "mbr-perf", "measured", steps, **stated)


def time_of(log, golden):
    findings = judge_log(log, golden, WindowOptions(), OF_BRIDGE).comparison.findings
    return next(finding for finding in findings if finding.metric == "step_time_s")


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (job(), ""),
        (job(num_gpus=64), r"\b64 GPUs, .* 32\b"),
        (job(num_gpus=None), "job .* GPUs"),
        (job(batch=256), r"batch size .* 256, .* 128\b"),
        (job(batch=None), "job .* global batch size"),
    ],
)
def test_iteration_times_are_judged_for_the_same_gpus_and_batch_only(log, expected):
    finding = time_of(log, reference(num_gpus=32, global_batch_size=128))
    assert (finding.verdict, finding.change) == (Verdict.INCONCLUSIVE if expected else Verdict.PASS, 0.0)
    assert re.search(expected, finding.reason)


def test_with_a_throughput_the_iteration_time_is_shown_only():
    finding = time_of(job(num_gpus=64), reference(num_gpus=32, global_batch_size=128, tflops=700.0))
    assert finding.verdict is Verdict.NOT_GATED


@pytest.mark.parametrize(
    ("stated", "missing"),
    [
        ({}, " GPUs and global batch size, "),
        ({"num_gpus": 32}, " its global batch size, "),
        ({"global_batch_size": 128}, " GPUs, "),
    ],
)
@pytest.mark.parametrize("seconds", [2.5, 5.0])
def test_a_golden_that_does_not_state_gpus_and_batch_judges_no_time(stated, missing, seconds):
    finding = time_of(job(seconds=seconds), reference(**stated))
    assert (finding.verdict, finding.change) == (Verdict.INCONCLUSIVE, seconds / 2.5 - 1)
    assert missing in finding.reason


@pytest.mark.parametrize("stated", [{}, {"num_gpus": 32}, {"num_gpus": 32, "global_batch_size": 128}])
def test_between_two_logs_what_one_does_not_state_is_taken_as_equal(stated):
    judged = judge_log(job(seconds=5.0), reference(**stated, log=job()), WindowOptions(), OF_BRIDGE)
    assert judged.comparison.outcome is Verdict.REGRESSION


def test_a_golden_of_mbr_perf_states_its_gpus_and_batch(make_record, make_golden, tmp_path):
    path = tmp_path / "golden.json"
    path.write_text(golden_text(make_golden(make_record(seconds=2.5), {"step_time_s": 2.5})))
    golden = read_foreign_golden(path)
    assert (golden.num_gpus, golden.global_batch_size) == (32, 32)


def test_another_batch_than_the_golden_states_is_a_doubt():
    golden = reference(num_gpus=32, global_batch_size=128, tflops=700.0)

    def doubts(log):
        return judge_log(log, golden, WindowOptions(), OF_BRIDGE).doubts

    assert [bool(re.search(r" 256, .* 128$", doubt)) for doubt in doubts(job(batch=256))] == [True]
    assert doubts(job()) == doubts(job(batch=None)) == ()
