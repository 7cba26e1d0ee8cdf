"""Verdicts against upstream's recorded cases and at the edges where a naive gate passes."""

import json
import math
from pathlib import Path

import pytest

from harness.experiment.flops import model_flops_per_step
from harness.judge.derive import derive
from harness.judge.gate import Figure, Thresholds, Verdict, compare_values, default_thresholds, judge, judge_figure
from harness.judge.likeness import Likeness
from harness.records.metrics import METRICS
from harness.records.rank import MemoryRecord, StepRecord

UPSTREAM = json.loads((Path(__file__).parents[1] / "data/bridge/evaluate.json").read_text())
METRIC = {metric.name: metric for metric in METRICS}
THROUGHPUT, ALLOCATED = METRIC["tflops_per_gpu"], METRIC["peak_allocated_bytes"]
STALLED_STEP_S = 1e6
FIVE_PERCENT = Thresholds(time=0.05, memory=0.05)


def cases(kind):
    return [pytest.param(case, id=case["name"]) for case in UPSTREAM[kind]]


def steps_of(spec, series):
    """Step records that show the given TFLOP/s/GPU; null: the step is missing, 0: it stalled."""
    values = [value for value, repeats in series for _ in range(repeats)]
    work = model_flops_per_step(spec) / spec.num_gpus / 1e12
    return tuple(
        StepRecord(step=i, seconds=work / value if value else STALLED_STEP_S)
        for i, value in enumerate(values)
        if value is not None
    )


def finding(comparison, name):
    return next(f for f in comparison.findings if f.metric == name)


def test_what_must_be_exact_has_no_threshold_to_choose(make_spec):
    kinds = [METRIC[name].kind for name in ("counted_flops_per_step", "peak_allocated_bytes", "mfu")]
    assert kinds == ["exact", "memory", "time"]
    for thresholds in (FIVE_PERCENT, default_thresholds(make_spec())):
        assert (thresholds.of("exact"), thresholds.of("time")) == (0.0, thresholds.time)


@pytest.mark.parametrize("case", cases("performance"))
def test_throughput_cases_of_megatron_bridge(make_spec, make_rank, make_record, make_golden, case):
    num_steps = sum(repeats for _, repeats in case["current"])
    measure = {
        "max_steps": num_steps, "skip_first_percent_time": case["skip"],
        "eval_time_start_step": case["start"], "eval_time_end_step": case["end"],
    }  # fmt: skip
    spec = make_spec(num_gpus=1, parallelism={}, measure=measure)
    record = make_record(spec, ranks=(make_rank(spec, 0, steps=steps_of(spec, case["current"])),))
    metrics = derive(record)
    if case["golden"] <= 0:
        found = compare_values(THROUGHPUT, THROUGHPUT.read(metrics), case["golden"], case["threshold"])
    else:
        golden = make_golden(record, {"tflops_per_gpu": case["golden"]})
        thresholds = Thresholds(time=case["threshold"], memory=0.05)
        found = finding(judge(metrics, golden, thresholds, likeness=Likeness()), "tflops_per_gpu")
    assert found.verdict == Verdict(case["verdict"])


@pytest.mark.parametrize("case", cases("memory"))
def test_memory_cases_of_megatron_bridge(case):
    for kind in ("allocated", "reserved"):
        golden, current = case[f"golden_{kind}_gb"], case[f"current_{kind}_gb"]
        if golden is not None:
            found = compare_values(METRIC[f"peak_{kind}_bytes"], current, golden, case["threshold"])
            assert found.verdict == Verdict(case[kind])


@pytest.mark.parametrize("golden", [709.93, 700.0, 0.065, 1e-9, 3.3e14])
@pytest.mark.parametrize("threshold", [0.05, 0.1, 0.005, 0.15])
def test_a_change_of_exactly_the_threshold_passes_on_both_sides(golden, threshold):
    for metric in (THROUGHPUT, ALLOCATED):
        for factor in (1 - threshold, 1 + threshold):
            exact = golden * factor
            for value in (exact, math.nextafter(exact, 0.0), math.nextafter(exact, math.inf)):  # rounding
                assert compare_values(metric, value, golden, threshold).verdict is Verdict.PASS
    worse = compare_values(THROUGHPUT, golden * (1 - threshold - 1e-6), golden, threshold)
    better = compare_values(THROUGHPUT, golden * 1.2, golden, threshold)
    assert (worse.verdict, better.verdict) == (Verdict.REGRESSION, Verdict.IMPROVEMENT)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_a_gate_needs_two_real_numbers(value):
    as_current = compare_values(THROUGHPUT, value, 700.0, 0.05)
    as_golden = compare_values(THROUGHPUT, 700.0, value, 0.05)
    assert (as_current.verdict, as_golden.verdict) == (Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE)
    assert (as_current.change, as_golden.change) == (None, None)
    assert ("run's" in as_current.reason, "reference's" in as_golden.reason) == (True, True)


@pytest.mark.parametrize(("current", "verdict"), [(100, "pass"), (101, "regression"), (99, "regression")])
def test_counted_work_may_not_change_at_all(current, verdict):
    assert compare_values(METRIC["counted_flops_per_step"], current, 100, 0.0).verdict == Verdict(verdict)


def judged(make_record, make_golden, goldens, doubts=(), **changes):
    record = make_record(seconds=2.56, **changes)
    return judge(derive(record), make_golden(record, goldens), FIVE_PERCENT, likeness=Likeness(), doubts=doubts)


def test_a_regression_outweighs_an_improvement_and_that_a_pass(make_record, make_golden):
    goldens = {"tflops_per_gpu": 10.0, "peak_reserved_bytes": 62e9}
    better, worse = (judged(make_record, make_golden, goldens | more) for more in ({}, {"peak_allocated_bytes": 50e9}))
    verdicts = {f.metric: f.verdict for f in worse.findings}
    assert verdicts["tflops_per_gpu"] is Verdict.IMPROVEMENT
    assert verdicts["peak_allocated_bytes"] is Verdict.REGRESSION
    assert verdicts["peak_reserved_bytes"] is Verdict.PASS
    assert (better.outcome, worse.outcome) == (Verdict.IMPROVEMENT, Verdict.REGRESSION)


def test_a_value_the_golden_has_and_the_run_lacks_is_inconclusive(make_spec, make_rank, make_record, make_golden):
    spec = make_spec()
    memory = MemoryRecord(meter="cuda", max_allocated_bytes=58_000_000_000)
    ranks = tuple(make_rank(spec, rank, 2.56, memory=memory) for rank in range(32))
    goldens = {"peak_allocated_bytes": 58e9, "peak_reserved_bytes": 62e9}
    comparison = judged(make_record, make_golden, goldens, ranks=ranks)
    assert finding(comparison, "peak_reserved_bytes").verdict is Verdict.INCONCLUSIVE
    assert finding(comparison, "peak_allocated_bytes").verdict is Verdict.PASS
    assert comparison.outcome is Verdict.INCONCLUSIVE


def test_throughput_is_gated_once_not_three_times_and_what_the_golden_lacks_is_shown_only(make_record, make_golden):
    goldens = {"tflops_per_gpu": 690.0, "step_time_s": 0.001, "tokens_per_s_per_gpu": 1e9}
    comparison = judged(make_record, make_golden, goldens)
    lacking = finding(comparison, "peak_device_bytes")
    assert (lacking.verdict, lacking.current) == (Verdict.NOT_GATED, 64_000_000_000)
    assert finding(comparison, "step_time_s").verdict is Verdict.NOT_GATED
    assert comparison.outcome is Verdict.PASS
    # A golden that gates nothing is no pass.
    assert judged(make_record, make_golden, {"step_time_s": 2.5}).outcome is Verdict.INCONCLUSIVE


def test_a_doubtful_run_concludes_nothing_and_keeps_its_numbers(make_record, make_golden):
    comparison = judged(make_record, make_golden, {"tflops_per_gpu": 9999.0}, doubts=("suspect: throttled",))
    found = finding(comparison, "tflops_per_gpu")
    assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, "suspect: throttled")
    assert found.change == pytest.approx(693.01 / 9999 - 1, rel=1e-4)


def test_a_figure_with_a_problem_on_either_side_is_inconclusive():
    sound, odd = Figure(1.0), Figure(1.0, "too few steps")
    for sides in ((sound, odd), (odd, sound)):
        found = judge_figure(METRICS[0], *sides, FIVE_PERCENT)
        assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, "too few steps")


@pytest.mark.parametrize(
    ("gpu", "num_runs", "time", "memory"),
    [
        ("h100", 1, 0.05, 0.05),
        ("h100", 5, 0.05, 0.05),
        ("cpu", 1, 0.15, 0.005),
        ("cpu", 2, 0.15, 0.005),
        ("cpu", 3, 0.10, 0.005),
    ],
)
def test_thresholds_come_from_the_gpu_row_and_repeats(make_spec, gpu, num_runs, time, memory):
    assert default_thresholds(make_spec(gpu=gpu), num_runs) == Thresholds(time, memory)
    assert default_thresholds(make_spec(gpu=gpu), num_runs, timing=0.25, memory=0.2) == Thresholds(0.25, 0.2)
