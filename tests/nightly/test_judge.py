"""The answer of a whole night: the worst of its cases."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from harness.errors import ExitCode
from harness.history.record import case_of
from harness.history.store import write_history
from harness.judge.derive import derive
from harness.judge.gate import Verdict
from harness.nightly.judge import is_slower, judge_night, outlook
from harness.nightly.values import CaseFinding, CaseMaterial, CaseRun, Evidence, rules_of
from harness.nightly.words import SPEED, answer, finding_of
from harness.records.goldens import GoldenSearch
from harness.records.night import ExpectedFailureRecord, NightPlan, PlannedCase, RefusedCase

TODAY = date(2026, 2, 1)


def plan(*cases, **changes):
    fields = {
        "night_id": "20260201T030000Z-nightly-0a1b2c3d", "suite": "nightly", "title": "Nightly", "cases": cases,
        "confirm": 2, "retries": 1, "command": ("mbr-perf", "nightly"), "started_at": "2026-02-01T03:00:00Z",
        "mbr_perf": "0.1.0",
    }  # fmt: skip
    return NightPlan(**fields | changes)


@pytest.fixture(name="material")
def _material(make_spec, make_record, make_golden):
    """A case of three runs of ``seconds`` a step, or that ended as ``status``; the golden has three of a second."""
    spec = make_spec(num_gpus=1, parallelism={}, measure={"max_steps": 20})
    base = make_record(spec)
    golden = make_golden(base, {"tflops_per_gpu": derive(base).tflops_per_gpu.median}, num_runs=3)

    def build(name: str, seconds: float = 1.0, status: str = "ok", **changes) -> CaseMaterial:
        records = [make_record(spec, seconds * (1 + i / 1000), status=status, failure="x") for i in range(3)]
        runs = [CaseRun(i, "repeat", "", Path("runs"), record) for i, record in enumerate(records, 1)]
        kind = RefusedCase if "refused" in changes else PlannedCase
        case = kind(name=name, spec=spec, repeats=3, **changes)
        return CaseMaterial(case, runs, GoldenSearch(golden, Path("golden.json")))

    return build


def judge(cases, num_due=0, **changes):
    return judge_night(Path("night"), plan(*(c.planned for c in cases), **changes), cases, today=TODAY, num_due=num_due)


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
    assert case.remark == ("expected oom did not happen: remove the entry (known)" if is_out_of_date else "")


def test_a_night_with_runs_still_to_do_has_no_answer_yet(material):
    verdict = judge([material("a")], num_due=1)
    assert (verdict.outcome, verdict.exit_code, verdict.num_due) == ("inconclusive", ExitCode.INCONCLUSIVE, 1)


def test_an_improvement_fails_the_night_only_where_asked(material):
    cases = [material("a", seconds=0.8)]
    assert judge(cases).exit_code == ExitCode.OK
    assert judge(cases, fail_on_improvement=True).exit_code == ExitCode.IMPROVEMENT


def test_false_alarms_are_shared_out_among_the_cases_that_can_run_and_all_shards(make_spec):
    refused = RefusedCase(name="0", repeats=1, refused="no")
    cases = [refused, *(PlannedCase(name=str(i), spec=make_spec(), repeats=1) for i in range(1, 26))]
    assert rules_of(plan(*cases), TODAY).alpha == 0.01 / 25
    assert rules_of(plan(*cases, shard="1/2"), TODAY).alpha == 0.01 / 50
    assert rules_of(plan(), TODAY).alpha == 0.01


@pytest.fixture(name="last")
def _last(tmp_path, make_spec, make_kept):
    """The last run that the outlook of case ``dense`` of suite ``nightly`` names, of runs of these cases."""
    spec = make_spec()

    def found(*kept: tuple[str, str]) -> str | None:
        for number, (suite, name) in enumerate(kept):
            fields = {"suite": suite, "suite_case": name, "case": case_of(spec), "fingerprint": spec.fingerprint}
            write_history(tmp_path, [make_kept(number, **fields)])
        [found] = outlook(plan(PlannedCase(name="dense", spec=spec, repeats=1)), tmp_path)
        return found.last and found.last.run_id

    return found


def test_the_last_run_of_a_case_is_its_own_newest_although_others_ran_later(last):
    assert (
        last(("nightly", "dense"), ("nightly", "dense"), ("nightly", "other"), ("weekly", "dense"), ("", ""))
        == "run0001"
    )


def test_a_case_that_never_ran_has_the_newest_run_outside_of_suites_for_its_last(last):
    assert last(("", ""), ("", ""), ("nightly", "other")) == "run0001"


def test_most_cases_slower_at_once_are_a_doubt_until_something_repeats_it(material):
    slow = [material(f"slow{i}", 1.1) for i in range(3)]
    doubted = judge(slow)
    assert (doubted.outcome, doubted.exit_code) == ("inconclusive", ExitCode.INCONCLUSIVE)
    assert doubted.shared is not None and doubted.shared.is_doubt
    assert "3 of 3 cases are slower tonight, the median by 9.2 %" in doubted.cases[0].reason
    assert answer(doubted).startswith("INCONCLUSIVE in 3 of 3 cases: all cases: -9.2 %, not yet repeated; slow0")

    confirmed = [
        replace(case, runs=[*case.runs[:2], replace(case.runs[2], purpose="confirm")])
        if case.planned.name != "slow2"
        else case
        for case in slow
    ]
    one = judge(confirmed)
    assert (one.outcome, one.exit_code) == ("regression", ExitCode.REGRESSION)
    assert answer(one).startswith("REGRESSION in 3 of 3 cases: all cases: -9.2 %; slow0")


def test_some_slower_cases_are_regressions_of_their_own(material):
    found = judge([material("a", 1.1), material("b", 1.1), *(material(f"same{i}") for i in range(3))])
    assert (found.shared, found.outcome) == (None, "regression")
    two = judge([material("a", 1.1), material("b", 1.1)])
    assert (two.shared, two.outcome) == (None, "regression")


def test_line_1_names_a_golden_without_throughput(material):
    case = material("a")
    golden = case.golden.golden
    peaks = {name: metric for name, metric in golden.metrics.items() if name != "tflops_per_gpu"}
    blind = replace(case, golden=replace(case.golden, golden=golden.model_copy(update={"metrics": peaks})))
    assert "the golden of a has no throughput" in answer(judge([blind, material("b")]))
    assert "has no throughput" not in answer(judge([case]))


def test_a_night_that_judged_no_time_says_so_in_its_first_line(material):
    without = [replace(material("a"), golden=GoldenSearch(None, None, "no golden at h100/a.json"))]
    assert "; no time was judged: no golden" in answer(judge(without))
    assert "no time was judged" not in answer(judge([material("a"), *without]))
    damaged = replace(material("a"), golden=GoldenSearch(None, None, "no JSON", is_damaged=True))
    assert answer(judge([damaged])).endswith("; no time was judged: the golden cannot be read")


def test_a_faster_case_is_named_although_nothing_is_red(material):
    assert "changed by more than the threshold: fast (+" in answer(judge([material("fast", 0.8), material("same")]))


@pytest.mark.parametrize(
    ("change", "smallest", "is_worse"),
    [(-0.021, 0.02, True), (-0.02, 0.02, False), (0.01, 0.02, False), (-0.001, None, True), (0.0, None, False)],
)
def test_a_case_is_slower_beyond_the_smallest_change_that_matters(make_case, change, smallest, is_worse):
    evidence = Evidence(0.5, 0.01, "these repeats", 3, 3, smallest)
    finding = CaseFinding(SPEED, 700 * (1 + change), 700.0, change, 0.05, Verdict.INCONCLUSIVE, "", evidence)
    assert is_slower(make_case("a", [], findings=(finding,))) is is_worse


@pytest.mark.parametrize(
    ("num_slow", "num_confirmed", "is_doubt"), [(4, 2, False), (3, 2, False), (3, 1, True), (5, 2, True)]
)
def test_half_of_the_slower_cases_must_repeat_a_shared_change(material, num_slow, num_confirmed, is_doubt):
    cases = [material(f"slow{i}", 1.1) for i in range(num_slow)]
    for i in range(num_confirmed):
        cases[i] = replace(cases[i], runs=[*cases[i].runs[:2], replace(cases[i].runs[2], purpose="confirm")])
    shared = judge(cases).shared
    assert shared is not None
    assert shared.is_doubt is is_doubt


def test_a_doubt_shared_by_most_cases_hides_no_failure_and_no_expectation(material):
    failed = material("failed", 1.1)
    failed = replace(failed, runs=[*failed.runs, replace(material("x", status="failed").runs[0], number=4)])
    expected = ExpectedFailureRecord(outcome="regression", until="2026-02-01", reason="known")
    night = judge([failed, material("known", 1.1, expected=expected), material("slow", 1.1)])
    assert night.shared is not None and night.shared.is_doubt
    assert [(case.outcome, case.exit_code) for case in night.cases] == [
        ("failed", ExitCode.RUN_FAILED),
        ("inconclusive", ExitCode.OK),
        ("inconclusive", ExitCode.INCONCLUSIVE),
    ]
    assert {finding_of(case, SPEED).verdict for case in night.cases} == {Verdict.INCONCLUSIVE}
