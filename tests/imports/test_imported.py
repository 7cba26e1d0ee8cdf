"""The start, the end and the steps of a job, as read from its training log; verdicts agree with those of Megatron-Bridge."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.compare.figures import judge_log
from harness.compare.foreign import OF_BRIDGE
from harness.errors import BadRequestError
from harness.foreign.golden import read_foreign_golden
from harness.imports.job import ending, job_times
from harness.imports.run import rank_records
from harness.imports.sides import Side, read_side
from harness.judge.compare import WindowOptions
from harness.judge.gate import comparison_outcome
from tests.imported_logs import TABLE, iteration, job_log, out_of_memory
from tests.imports.logs import bridge_log, golden_of, megatron_lm_log, memory_gb


@pytest.fixture(name="read")
def _read(tmp_path):
    """A log's text as a parsed log, and the failure in it."""

    def run(text):
        (tmp_path / "job.log").write_text(text)
        return read_side(Side("log", (str(tmp_path / "job.log"),), ""))

    return run


def test_a_failure_from_which_the_job_recovered_is_a_note(read):
    whole = [iteration(number, 3.0) for number in range(1, 21)]
    log, found = read("\n".join([*whole[:5], out_of_memory(60.0), *whole]) + "\n")
    ended = ending(log, found)

    assert (ended.status, ended.failure, ended.first) == ("ok", None, None)
    assert len(ended.notes) == 1 and "memory" in ended.notes[0]


def test_a_failure_of_an_unknown_rank_belongs_to_no_rank(read):
    log, found = read(job_log(TABLE[0]).replace("[rank0]: ", ""))
    ended = ending(log, found)
    ranks = rank_records(log, ended.first, 32, ended_well=False)

    assert ended.status == "oom"
    assert ended.failure.startswith("the job ") and " iteration 2" in ended.failure
    assert [rank.rank for rank in ranks if rank.failure] == []


def test_a_job_that_failed_before_its_first_iteration_has_no_steps(read):
    log, found = read(out_of_memory(58.8) + "\n")
    ended = ending(log, found)
    ranks = rank_records(log, ended.first, 32, ended_well=False)

    assert ended.status == "oom"
    assert [(rank.rank, rank.steps) for rank in ranks] == [(0, ())]
    assert ranks[0].memory.max_reserved_bytes > ranks[0].memory.max_allocated_bytes


def test_iterations_with_an_impossible_time_are_left_out(read):
    log, _ = read(megatron_lm_log((0.9, 0.0, 0.9, 2e9, 0.9)))
    ranks = rank_records(log, None, 32, ended_well=True)
    assert [step.step for rank in ranks for step in rank.steps] == [0, 2, 4]


NOW = datetime(2026, 9, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "started_at", "source"),
    [
        ("[2025-03-01 23:59:59.500000] iteration 1/ 5 | lm loss: 1 |", "2025-03-01T23:59:59+00:00", "log"),
        ("2025-03-01 01:00:00,5+02:00 iteration 1/ 5 | lm loss: 1 |", "2025-02-28T23:00:00+00:00", "log"),
        ("2025-03-01T10:00:00Z ncclInit\nValueError: x", "2025-03-01T10:00:00+00:00", "log"),
        ("[2025-02-31 10:00:00] iteration 1/ 5 | lm loss: 1 |", "2026-09-01T00:00:00+00:00", "unknown"),
        ("[2026-09-01 14:00:00] iteration 1/ 5 | lm loss: 1 |", "2026-09-01T14:00:00+00:00", "log"),
        ("[2026-09-01 14:00:01] iteration 1/ 5 | lm loss: 1 |", "2026-09-01T00:00:00+00:00", "unknown"),
        ("iteration 1/ 5 | lm loss: 1 |", "2026-09-01T00:00:00+00:00", "unknown"),
    ],
)
def test_the_start_of_a_job_is_read_from_its_log_or_unknown(read, text, started_at, source):
    times = job_times(read(text)[0], NOW)

    assert (times.started_at, times.source) == (started_at, source)


def test_the_duration_is_from_the_first_iteration_to_the_last(read):
    lines = [f"[2025-03-01 10:0{number}:00] iteration {number}/ 5 | lm loss: 1 |" for number in range(1, 6)]
    log = read("2025-03-01 09:00:00 set-up\n" + "\n".join(lines))[0]
    times = job_times(log, NOW)

    assert times.duration_s == 240.0
    assert (times.started_at, times.finished_at) == ("2025-03-01T10:01:00+00:00", "2025-03-01T10:05:00+00:00")


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
        read = read_side(Side("log", (str(tmp_path / "run.log"),), ""))[0]
        return judge_log(read, read_foreign_golden(tmp_path / "golden.json"), window, thresholds, **more)

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
