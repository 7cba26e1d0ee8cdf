"""The answer of a whole night: the worst of its cases."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import ExitCode
from harness.history.record import Occasion, case_of, history_record
from harness.history.store import write_history
from harness.judge.derive import derive
from harness.nightly.judge import judge_night, outlook
from harness.nightly.values import CaseMaterial, CaseRun
from harness.nightly.words import answer
from harness.records.goldens import GoldenSearch
from harness.records.night import ExpectedFailureRecord, PlannedCase, RefusedCase
from tests.nightly.night_recordings import plan_of


@pytest.fixture(name="material")
def _material(make_spec, make_record, make_golden):
    """A case of four runs of ``seconds`` a step, or that ended as ``status``; the golden has three of a second."""
    spec = make_spec(num_gpus=1, parallelism={}, measure={"max_steps": 20})
    base = make_record(spec)
    golden = make_golden(base, {"tflops_per_gpu": derive(base).tflops_per_gpu.median}, num_runs=3)

    def build(name: str, seconds: float = 1.0, status: str = "ok", is_confirmed=True, **changes) -> CaseMaterial:
        records = [
            make_record(spec, seconds * (1 + i / 1000), status=status, failure="x", run_id=f"run{i}") for i in range(4)
        ]
        purposes = ("repeat", "repeat", "repeat", "confirm")[: 3 + is_confirmed]
        runs = [CaseRun(i, what, "", Path("runs"), records[i]) for i, what in enumerate(purposes)]
        kind = RefusedCase if "refused" in changes else PlannedCase
        case = kind(name=name, spec=spec, repeats=3, **changes)
        return CaseMaterial(case, runs, GoldenSearch(golden, Path("golden.json")))

    return build


def judge(cases, num_due=0, **changes):
    return judge_night(Path("night"), plan_of(*(c.planned for c in cases), **changes), cases, num_due=num_due)


@pytest.mark.parametrize(
    ("kinds", "outcome", "exit_code"),
    [
        (("pass", "improvement"), "improvement", ExitCode.OK),
        (("pass",), "pass", ExitCode.OK),
        (("pass", "regression", "improvement"), "regression", ExitCode.REGRESSION),
        (("inconclusive", "improvement"), "inconclusive", ExitCode.INCONCLUSIVE),
        (("inconclusive", "regression"), "regression", ExitCode.REGRESSION),
        (("regression", "oom"), "oom", ExitCode.OUT_OF_MEMORY),
        (("oom", "failed", "regression"), "failed", ExitCode.RUN_FAILED),
    ],
)
def test_the_worst_case_is_the_answer(material, kinds, outcome, exit_code):
    ways = {
        "pass": {}, "regression": {"seconds": 1.2}, "improvement": {"seconds": 0.8}, "failed": {"status": "failed"},
        "oom": {"status": "oom"}, "inconclusive": {"status": "interrupted"},
    }  # fmt: skip
    verdict = judge([material(kind, **ways[kind]) for kind in kinds])
    assert [case.outcome for case in verdict.cases] == list(kinds)
    assert (verdict.outcome, verdict.exit_code) == (outcome, exit_code)


def test_an_expected_failure_is_a_pass_of_the_night(material):
    expected = ExpectedFailureRecord(outcome="oom", until="2026-02-01", reason="known")
    verdict = judge([material("big", status="oom", expected=expected), material("small")])
    assert (verdict.outcome, verdict.exit_code) == ("pass", ExitCode.OK)
    assert verdict.cases[0].outcome == "oom"


@pytest.mark.parametrize(
    ("changes", "is_out_of_date"),
    [({}, True), ({"seconds": 1.2}, True), ({"status": "failed"}, False), ({"status": "interrupted"}, False),
     ({"refused": "no GPU"}, False)],
    ids=["passed", "slower", "failed", "interrupted", "refused"],
)  # fmt: skip
def test_an_expected_failure_is_out_of_date_only_where_the_runs_came_to_their_end(material, changes, is_out_of_date):
    expected = ExpectedFailureRecord(outcome="oom", until="2026-02-01", reason="known")
    dense = material("big", expected=expected, **changes)
    if "refused" in changes:
        dense = replace(dense, runs=())
    [case] = judge([dense]).cases
    assert ("oom" in case.remark and "(known)" in case.remark) is is_out_of_date


def test_a_night_with_runs_still_to_do_has_no_answer_yet(material):
    verdict = judge([material("a")], num_due=1)
    assert (verdict.outcome, verdict.exit_code, verdict.num_due) == ("inconclusive", ExitCode.INCONCLUSIVE, 1)


def test_an_improvement_fails_the_night_only_where_asked(material):
    cases = [material("a", seconds=0.8)]
    assert judge(cases).exit_code == ExitCode.OK
    assert judge(cases, fail_on_improvement=True).exit_code == ExitCode.IMPROVEMENT


@pytest.fixture(name="last")
def _last(tmp_path, make_spec, make_kept):
    """The last run that the outlook of case ``dense`` of suite ``nightly`` names, of runs of these cases."""
    spec = make_spec()

    def found(*kept: tuple[str, str]) -> str | None:
        for number, (suite, name) in enumerate(kept):
            fields = {"suite": suite, "suite_case": name, "case": case_of(spec), "fingerprint": spec.fingerprint}
            write_history(tmp_path, [make_kept(number, **fields)])
        [found] = outlook(plan_of(PlannedCase(name="dense", spec=spec, repeats=1)), tmp_path)
        return found.last and found.last.run_id

    return found


def test_the_last_run_of_a_case_is_the_newest_of_its_settings(last):
    assert last(("nightly", "dense"), ("nightly", "other"), ("", "")) == "run0002"


def test_most_cases_slower_at_once_are_one_finding_in_doubt_until_one_is_red(material):
    doubted = judge([material(f"slow{i}", 1.1, is_confirmed=False) for i in range(3)])
    assert (doubted.outcome, doubted.exit_code) == ("inconclusive", ExitCode.INCONCLUSIVE)
    assert (doubted.shared.is_doubt, doubted.shared.num_cases, doubted.shared.num_judged) == (True, 3, 3)
    assert re.match(r"INCONCLUSIVE in 3 of 3 .*: -9.2 %, .*; slow0", answer(doubted))
    one = judge([material("slow0", 1.1), *(material(f"slow{i}", 1.1, is_confirmed=False) for i in (1, 2))])
    assert (one.outcome, one.shared.is_doubt) == ("regression", False)


def test_some_slower_cases_are_regressions_of_their_own(material):
    found = judge([*(material(name, 1.1) for name in "abc"), *(material(f"same{i}") for i in range(2))])
    assert (found.shared, found.outcome) == (None, "regression")
    two = judge([material("a", 1.1), material("b", 1.1)])
    assert (two.shared, two.outcome) == (None, "regression")


def test_a_night_that_judged_no_time_says_so_in_its_first_line(material):
    without = [replace(material("a"), golden=GoldenSearch(None, None, "no golden at h100/a.json"))]
    damaged = replace(material("a"), golden=GoldenSearch(None, None, "no JSON", is_damaged=True))
    first_lines = [answer(judge(cases)) for cases in (without, [damaged], [material("a"), *without])]
    assert ["no time judged in 1 of 1 case: a: " in line for line in first_lines] == [True, True, False]
    assert ["golden promote" in line for line in first_lines] == [True, False, True]


def test_a_golden_without_throughput_is_named_before_a_case_without_a_golden(material):
    without = replace(material("a"), golden=GoldenSearch(None, None, "no golden at h100/a.json"))
    found = material("b")
    stored = found.golden.golden.model_copy(update={"metrics": {}})
    blind = replace(found, golden=replace(found.golden, golden=stored))
    assert "no time judged in 2 of 2 cases: b: the golden has no throughput" in answer(judge([without, blind]))


def test_an_accident_of_one_case_makes_the_first_bad_night_of_another_yellow(material, make_kept):
    slow, calm = material("slow", 1.1), material("calm")
    spec = calm.planned.spec
    record = calm.runs[0].record
    fields = {"case": case_of(spec), "fingerprint": spec.fingerprint}
    history = []
    for day in range(1, 13):
        when = record.provenance.model_copy(update={"started_at": f"2026-01-{day:02d}T03:00:00Z"})
        run = record.model_copy(update={"run_id": f"h{day}", "provenance": when})
        kept = history_record(run, derive(run), Occasion(night_id=f"n{day}", outcome="pass"))
        history.append(kept.model_copy(update=fields))
    usual = history[5].metrics["tflops_per_gpu"]
    odd = usual.model_copy(update={"value": usual.value * 0.8})
    shaken = history[5].model_copy(update={"metrics": {"tflops_per_gpu": odd}})
    assert judge([slow, replace(calm, history=history)]).outcome == "regression"
    night = judge([slow, replace(calm, history=[*history[:5], shaken, *history[6:]])])
    assert night.outcome == "inconclusive"
    assert re.search(r"\bcalm .* -20.0 %", night.cases[0].reason)
