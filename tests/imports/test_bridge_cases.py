"""Verdicts agree with those of Megatron-Bridge's evaluator, except for its known errors."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from harness.compare.convergence import LossLimits, judge_loss
from harness.compare.figures import judge_log
from harness.compare.foreign import OF_BRIDGE
from harness.errors import BadRequestError
from harness.foreign.golden import read_foreign_golden
from harness.foreign.reader import read_logs
from harness.judge.compare import WindowOptions
from harness.judge.gate import comparison_outcome, overall
from tests.imports.logs import bridge_log, memory_gb

CASES = json.loads((Path(__file__).parents[1] / "data/bridge/foreign.json").read_text())
AS_UPSTREAM, FIVE_PERCENT = WindowOptions(), OF_BRIDGE
VERDICTS = {True: "pass", False: "regression"}


def cases(kind):
    return [pytest.param(case, id=case["name"]) for case in CASES[kind]]


def spread(series):
    return [value for value, repeats in series for _ in range(repeats)]


@pytest.fixture(name="judged")
def _judged(tmp_path):
    """The comparison of a log's text with a golden's document."""

    def judge(log, golden, window=AS_UPSTREAM, thresholds=FIVE_PERCENT, **more):
        (tmp_path / "run.log").write_text(log)
        (tmp_path / "golden.json").write_text(json.dumps(golden))
        read = read_logs([tmp_path / "run.log"]), read_foreign_golden(tmp_path / "golden.json")
        return judge_log(*read, window, thresholds, **more)

    return judge


def golden_of(tflops, **memory):
    steps = {
        str(step): {"lm loss": 11.5, "elapsed time per iteration (ms)": 900.0, "GPU utilization": value}
        for step, value in enumerate(tflops)
    }
    return steps | {name: value for name, value in memory.items() if value is not None}


@pytest.mark.parametrize("case", cases("performance"))
def test_throughput(case, judged):
    config = case["config"]
    window = WindowOptions(
        config["skip_first_percent_time"], config["eval_time_start_step"], config["eval_time_end_step"]
    )
    thresholds = replace(OF_BRIDGE, time=config["timing_threshold"])
    found = judged(bridge_log(spread(case["current"])), golden_of(spread(case["golden"])), window, thresholds)
    assert comparison_outcome(found.comparison)[0] == case["outcome"]
    if case["agrees"]:
        assert case["outcome"] == VERDICTS[case["upstream"]["passed"]]


@pytest.mark.parametrize("case", cases("memory"))
def test_memory(case, judged):
    names = {"alloc": "allocated", "max_alloc": "max_allocated", "max_reserved": "max_reserved"}
    reported = {names[name]: value for name, value in case["current"].items() if value is not None}
    log = bridge_log([700.0] * 10, memory=[(1, memory_gb(0, 1, **reported))])
    found = judged(
        log, golden_of([700.0] * 10, **case["golden"]), thresholds=replace(OF_BRIDGE, memory=case["threshold"])
    )
    assert comparison_outcome(found.comparison)[0] == case["outcome"]


@pytest.mark.parametrize("case", cases("convergence"))
def test_loss_curves(case):
    limits = LossLimits(**case["config"])
    steps = range(1, len(case["golden"]) + 1)
    found = judge_loss(steps, case["current"], case["golden"], limits)
    assert overall(found).value == case["outcome"]
    figures = case["upstream"].get("metrics")
    if figures and case["agrees"]:
        correlation, points, final, outliers = found
        assert correlation.current == pytest.approx(figures["correlation"], abs=1e-12)
        assert points.current * figures["total_points"] == pytest.approx(figures["point_wise_failures"])
        assert abs(final.change) == pytest.approx(figures["final_loss_diff"])
        assert outliers.current == pytest.approx(figures["outlier_ratio"])
        failed = {finding.metric for finding in found if finding.verdict.value == "regression"}
        names = {"correlation": "loss_correlation", "point_wise_tolerance": "loss_points", "final_loss": "loss_final"}
        assert failed == {names[name] for name in case["upstream"]["failed_metrics"]}


@pytest.mark.parametrize("case", cases("end_to_end"))
def test_from_log_to_outcome(case, judged, tmp_path):
    log = CASES["shared"][case["log"]]
    if case["golden"] is None:
        assert case["outcome"] == "error"
        with pytest.raises(BadRequestError, match=r"missing\.json"):
            read_foreign_golden(tmp_path / "missing.json")
        return
    found = judged(log, CASES["shared"][case["golden"]], checks_loss=True)
    assert comparison_outcome(found.comparison)[0] == case["outcome"]


def test_every_loss_check_names_its_number_and_its_limit():
    golden = [10 * math.exp(-0.04 * step) for step in range(20)]
    found = judge_loss(range(1, 21), [1.12 * loss for loss in golden], golden)
    assert [(finding.metric, finding.verdict.value) for finding in found] == [
        ("loss_correlation", "pass"), ("loss_points", "regression"), ("loss_final", "regression"),
        ("loss_outliers", "pass"),
    ]  # fmt: skip
    assert found[2].change == pytest.approx(0.12)
    assert found[1].reason.startswith("16 of 16 points ")


@pytest.mark.parametrize(("points", "verdict"), [(8, "not_gated"), (9, "regression")])
def test_a_correlation_needs_eight_points_after_the_first_fifth(points, verdict):
    golden = [10.0 - 0.2 * step for step in range(points)]
    current = [loss + (0.9 if step % 2 else -0.9) for step, loss in enumerate(golden)]
    found = judge_loss(range(1, points + 1), current, golden)
    assert found[0].verdict.value == verdict


@pytest.mark.parametrize(("loss", "tolerance"), [(2.01, 0.10), (2.0, 0.05), (0.51, 0.05), (0.5, 0.02), (0.1, 0.02)])
def test_tolerances_have_bands(loss, tolerance):
    for share, verdict in ((0.99, "pass"), (1.01, "regression")):
        curve = [loss * (1 + share * tolerance)] * 10
        found = {finding.metric: finding for finding in judge_loss(range(10), curve, [loss] * 10)}
        assert found["loss_points"].verdict.value == verdict
