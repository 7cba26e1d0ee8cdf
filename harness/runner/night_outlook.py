"""What is known of the cases of a night before it runs: the golden of each, and how it went last time."""

from pathlib import Path

from harness.analysis.history import case_of
from harness.records.histories import read_history
from harness.records.night import NightPlan, PlannedCase
from harness.report.night_plan import CaseOutlook
from harness.runner.night_judging import golden_of


def outlook(plan: NightPlan, results: Path) -> tuple[CaseOutlook, ...]:
    """One for each case, in the plan's order."""
    return tuple(_outlook(plan, case, results) for case in plan.cases)


def _outlook(plan: NightPlan, case: PlannedCase, results: Path) -> CaseOutlook:
    if case.spec is None:
        return CaseOutlook(case, None, "", None)
    golden = golden_of(case, plan.golden_dir)
    runs = read_history(results, case=case_of(case.spec), fingerprint=case.spec.fingerprint)
    return CaseOutlook(case, golden.path if golden.golden else None, golden.note, runs[-1] if runs else None)
