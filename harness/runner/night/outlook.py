"""What is known of the cases of a night before it runs: the golden of each, and how it went last time."""

from collections.abc import Sequence
from pathlib import Path

from harness.analysis.history.record import case_of
from harness.records.histories import read_history
from harness.records.history import HistoryRecord
from harness.records.night import NightPlan, PlannedCase
from harness.report.night_plan import CaseOutlook
from harness.runner.night.judging import golden_of


def outlook(plan: NightPlan, results: Path) -> tuple[CaseOutlook, ...]:
    """One for each case, in the plan's order."""
    return tuple(_outlook(plan, case, results) for case in plan.cases)


def _outlook(plan: NightPlan, case: PlannedCase, results: Path) -> CaseOutlook:
    if case.spec is None:
        return CaseOutlook(case, None, "", None)
    golden = golden_of(case, plan.golden_dir)
    runs = read_history(results, case=case_of(case.spec), fingerprint=case.spec.fingerprint)
    last = _last(runs, plan.suite, case.name)
    return CaseOutlook(case, golden.path if golden.golden else None, golden.note, last, golden.is_damaged)


def _last(runs: Sequence[HistoryRecord], suite: str, case: str) -> HistoryRecord | None:
    """The newest run of this case of the suite, else of none: how another case of the same settings went says nothing."""
    own = [run for run in runs if (run.suite, run.suite_case) == (suite, case)]
    outside = [run for run in runs if not run.suite_case]
    return next(reversed(own or outside), None)
