"""What a night says before and while it runs: the table of a dry run, what is refused, how to go on, what is kept."""

from pathlib import Path

import pytest

from harness.history.store import read_history
from harness.nightly.judge import judge_night
from harness.nightly.outlook import CaseOutlook, night_plan_document, outlook_page
from harness.nightly.run import keep_history
from harness.nightly.show import NightDisplay
from harness.nightly.values import CaseMaterial, CaseRun
from harness.records.goldens import GoldenSearch
from harness.records.night import ExpectedFailureRecord, PlannedCase, RefusedCase
from harness.records.prediction import PredictionRecord
from harness.units import GIB
from tests.commands import json_of, piped
from tests.nightly.night_recordings import plan_of

GOLDEN = Path("golden.json")
ABSENT = "golden.json does not exist"


def outlook(case, golden_path, no_golden, last, **more):
    return CaseOutlook.of(case=case, golden_path=golden_path, no_golden=no_golden, last=last, **more)


@pytest.fixture(name="case")
def _case(make_spec):
    """A planned case on settings of its own, or one that is refused."""

    def build(name="a", repeats=1, **changes):
        kind = RefusedCase if "refused" in changes else PlannedCase
        seed = sum(name.encode())
        return kind(name=name, repeats=repeats, **{"spec": make_spec(measure={"seed": seed})} | changes)

    return build


def lines_of(*cases, **changes):
    """The dry run of these outlooks without its title."""
    return piped(outlook_page(plan_of(*(item.case for item in cases), **changes), cases))[1:]


def row_of(item):
    """The columns after the setting."""
    line = next(line for line in lines_of(item) if line.startswith(item.case.name))
    return [cell.strip() for cell in line.split("  ") if cell.strip()][2:]


def test_a_case_is_shown_with_its_peak_its_golden_its_last_run_and_what_would_run(case, make_kept):
    peak = PredictionRecord(peak_bytes=3 * GIB, range_bytes=(0, 0), stages=(), model_flops=1, recompute_flops=0)
    kept = make_kept(suite_case="a", outcome="pass")
    expected = ExpectedFailureRecord(outcome="oom", until="2026-03-01", reason="known")
    assert row_of(outlook(case(prediction=peak), GOLDEN, "", kept)) == [
        "32 h100", "3.00 GiB", "yes", "pass 2026-01-01", "1 run",
    ]  # fmt: skip
    assert row_of(outlook(case(repeats=2), None, ABSENT, make_kept())) == [
        "32 h100", "-", "no", "ok 2026-01-01", "2 runs",
    ]  # fmt: skip
    assert row_of(outlook(case(repeats=3, expected=expected), GOLDEN, "changed", None)) == [
        "32 h100", "-", "changed", "-", "3 runs, expected oom until 2026-03-01",
    ]  # fmt: skip
    assert row_of(outlook(case(), None, "no JSON", None, is_golden_damaged=True))[2] == "damaged"
    assert [line for line in lines_of(outlook(case(refused="G7: no"), GOLDEN, "", None)) if "h100" in line] == []


def test_each_golden_with_a_problem_of_its_own_is_named_and_those_of_refused_cases_are_not(case, make_kept):
    why = "g.json: num_layers: golden 8, here 2"
    cases = (
        outlook(case("a"), None, why, None),
        outlook(case("b", refused="no GPU"), None, why, None),
        outlook(case("c"), None, "no JSON", None, is_golden_damaged=True),
        outlook(case("d", refused="no GPU"), None, "no JSON", None, is_golden_damaged=True),
        outlook(case("e"), GOLDEN, "changed", None),
        outlook(case("f"), GOLDEN, "", make_kept()),
    )
    lines = lines_of(*cases)
    assert [line for line in lines if line[1:2] == ":"] == [
        "b: refused: no GPU", "d: refused: no GPU", f"a: inconclusive: {why}", "c: inconclusive: no JSON",
        "e: inconclusive: changed",
    ]  # fmt: skip
    rows = json_of(night_plan_document(plan_of(*(item.case for item in cases)), cases, ()))["cases"]
    assert [(row["name"], row["refused"], row["golden_path"]) for row in rows[3:]] == [
        ("d", "no GPU", None), ("e", None, "golden.json"), ("f", None, "golden.json"),
    ]  # fmt: skip
    assert rows[5]["last"]["outcome"] == "ok"


def test_a_night_begins_with_the_cases_that_it_refuses(case, capsys):
    plan = plan_of(case("a"), case("b", refused="no GPU"), notes=("5 of 6 cases",))
    NightDisplay(as_json=False).begins(plan, Path("nights/x"))
    printed = capsys.readouterr()
    assert (printed.out + printed.err).splitlines() == ["Note: 5 of 6 cases", "b: refused: no GPU", "Kept in nights/x"]


@pytest.fixture(name="verdict")
def _verdict(case, make_record):
    """The verdict on one case with runs that ended so; None: never committed."""

    def build(*statuses, num_due=0):
        planned = case("a", repeats=len(statuses))
        records = [
            make_record(planned.spec, status=status, run_id=f"{number}") if status else None
            for number, status in enumerate(statuses)
        ]
        runs = [CaseRun(number, "repeat", "", Path("runs"), record) for number, record in enumerate(records)]
        material = CaseMaterial(planned, runs, GoldenSearch(None, None))
        judged = judge_night(Path("nights/x"), plan_of(planned), [material], num_due=num_due)
        return judged.model_copy(update={"finished_at": "2026-02-01T04:00:00Z"})

    return build


def test_history_keeps_runs_that_came_to_an_end(verdict, tmp_path):
    assert keep_history(verdict("ok", "interrupted", None, "failed"), tmp_path) == ()
    kept = {record.run_id: (record.suite_case, record.status) for record in read_history(tmp_path)}
    assert kept == {"0": ("a", "ok"), "3": ("a", "failed")}


def test_history_that_cannot_be_written_is_reported(verdict, tmp_path):
    (tmp_path / "history").write_text("")
    problems = keep_history(verdict("ok", "ok"), tmp_path)
    assert [problem.startswith("history: ") for problem in problems] == [True]
