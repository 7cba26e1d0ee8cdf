"""The judge of a night: every case by itself, and the one answer."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

from harness.analysis.night.aa import judge_aa
from harness.analysis.night.case import judge_case
from harness.analysis.night.case_outcome import WORST_FIRST
from harness.analysis.night.inputs import CaseMaterial, rules_of
from harness.analysis.night.values import AaVerdict, CaseVerdict, NightVerdict
from harness.errors import ExitCode
from harness.records.history import CaseOutcome
from harness.records.night import NightEvent, NightPlan

_WORST_CODE_FIRST = (
    ExitCode.RUN_FAILED,
    ExitCode.OUT_OF_MEMORY,
    ExitCode.REGRESSION,
    ExitCode.INCONCLUSIVE,
    ExitCode.IMPROVEMENT,
)


def judge_night(
    night_dir: Path,
    plan: NightPlan,
    cases: Sequence[CaseMaterial],
    *,
    today: date,
    events: Sequence[NightEvent] = (),
    finished_at: str = "",
    num_due: int = 0,
) -> NightVerdict:
    """The verdict on a night. ``cases`` in the plan's order; ``num_due``: runs still to be done.

    The exit code is the worst case's: 3 failed, 4 out of memory, 5 regression, 6 inconclusive (also where runs are still
    due, or the A/A does not hold), 7 improvement if asked for, else 0. An expected outcome counts as a pass.
    """
    aa = _aa(plan, cases)
    rules = replace(rules_of(plan, today), doubts=aa.doubts if aa else {})
    verdicts = tuple(judge_case(case, rules) for case in cases)
    is_open = num_due > 0 or (aa is not None and not aa.holds)
    codes = {verdict.exit_code for verdict in verdicts} | ({ExitCode.INCONCLUSIVE} if is_open else set())
    return NightVerdict(
        night_dir=night_dir,
        plan=plan,
        cases=verdicts,
        events=tuple(events),
        outcome=_outcome(verdicts, is_open=is_open),
        exit_code=next((code for code in _WORST_CODE_FIRST if code in codes), ExitCode.OK),
        finished_at=finished_at,
        num_due=num_due,
        aa=aa,
    )


def _aa(plan: NightPlan, cases: Sequence[CaseMaterial]) -> AaVerdict | None:
    found = [case for case in cases if plan.aa and case.planned.name == plan.aa.case]
    return judge_aa(found[0].planned, found[0].aa_runs, plan.aa_numbers(found[0].planned)) if found else None


def _outcome(verdicts: Sequence[CaseVerdict], *, is_open: bool) -> CaseOutcome:
    found: set[CaseOutcome] = {"pass" if verdict.is_expected else verdict.outcome for verdict in verdicts}
    if is_open:
        found.add("inconclusive")
    return next((outcome for outcome in WORST_FIRST if outcome in found), "pass")
