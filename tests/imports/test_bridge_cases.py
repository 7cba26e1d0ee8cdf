"""Verdicts agree with those of Megatron-Bridge's evaluator, except for its known errors."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.compare.figures import judge_log
from harness.compare.foreign import OF_BRIDGE
from harness.errors import BadRequestError
from harness.foreign.golden import read_foreign_golden
from harness.foreign.reader import read_logs
from harness.judge.compare import WindowOptions
from harness.judge.gate import comparison_outcome
from tests.imports.logs import bridge_log, golden_of, memory_gb

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


@pytest.mark.parametrize("case", cases("end_to_end"))
def test_from_log_to_outcome(case, judged, tmp_path):
    log = CASES["shared"][case["log"]]
    if case["golden"] is None:
        assert case["outcome"] == "error"
        with pytest.raises(BadRequestError, match=r"missing\.json"):
            read_foreign_golden(tmp_path / "missing.json")
        return
    found = judged(log, CASES["shared"][case["golden"]])
    assert comparison_outcome(found.comparison)[0] == case["outcome"]
