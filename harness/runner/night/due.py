"""Which runs of a night are due: worked out from what lies on disk alone, so that a resumed night equals an unbroken one."""

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

from harness.analysis.night.case_outcome import effective_runs
from harness.analysis.night.infrastructure import infrastructure_fault
from harness.analysis.night.values import CaseRun
from harness.records.night import NightPlan, PlannedCase, RefusedCase, aa_label
from harness.records.nights import NightCase, NightData, NightRun
from harness.runner.batch.plan import DueRun

DueCase = DueRun[PlannedCase]
Suspicion = Callable[[NightCase], str]
"""Why a case whose repeats are done looks like a regression; empty where it does not."""


def due_round(data: NightData, suspicion: Suspicion) -> tuple[DueCase, ...]:
    """The next round; empty when every case has what it needs. Interleaved: one run of every case, then a second one."""
    each = [(*_aa(data.plan, case), *due_runs(data.plan, case, suspicion)) for case in data.cases]
    return tuple(due for layer in zip_longest(*each) for due in layer if due is not None)


def due_runs(plan: NightPlan, case: NightCase, suspicion: Suspicion) -> tuple[DueCase, ...]:
    """Of one case: what was begun and not committed, and missing repeats; or a retry; or runs to confirm; or nothing.

    A run that failed ends the case, unless a named fault of the machines ended it and a retry is left.
    """
    planned = case.planned
    if isinstance(planned, RefusedCase):
        return ()
    bad = [run for run in effective_runs(case_runs(case)) if run.record and run.record.status in ("failed", "oom")]
    if bad:
        return tuple(_retries(plan, planned, case, bad))
    missing = (*_begun(planned, case), *_repeats(planned, case))
    if missing and not any(run.purpose == "confirm" for run in case.runs):
        return missing
    return (*missing, *_confirmations(plan, planned, case, suspicion))


def case_runs(case: NightCase) -> tuple[CaseRun, ...]:
    """The runs as the judge takes them, each with the named fault that ended it, if one did."""
    return tuple(_case_run(run) for run in case.runs)


def aa_runs(case: NightCase) -> tuple[CaseRun, ...]:
    """Those of the night's A/A likewise."""
    return tuple(_case_run(run) for run in case.aa_runs)


def _aa(plan: NightPlan, case: NightCase) -> Iterator[DueCase]:
    """A/A runs that are not there, in their order; none any more once one ended badly: there is no other in its place."""
    ended = {run.number: run.record.status for run in case.aa_runs if run.record}
    planned = case.planned
    if isinstance(planned, RefusedCase) or {"failed", "oom"} & set(ended.values()):
        return
    for place, number in enumerate(plan.aa_numbers(planned)):
        if ended.get(number, "interrupted") == "interrupted":
            yield DueRun(planned, number, "aa", aa_label(place))


def _case_run(run: NightRun) -> CaseRun:
    fault = infrastructure_fault(run.record) if run.record else None
    named = fault.name if fault else ""
    return CaseRun(run.number, run.purpose, run.reason, run.run_dir, run.record, named, run.cancelled)


def _begun(planned: PlannedCase, case: NightCase) -> Iterator[DueCase]:
    for run in case.runs:
        if run.record is None or run.record.status == "interrupted":
            why = f"again, the last time ended by: {run.cancelled}" if run.cancelled else ""
            yield DueRun(planned, run.number, run.purpose, "; ".join(filter(None, (run.reason, why))))


def _repeats(planned: PlannedCase, case: NightCase) -> Iterator[DueCase]:
    begun = {run.number for run in case.runs}
    for number in range(planned.repeats):
        if number not in begun:
            yield DueRun(planned, number, "repeat")


def _retries(plan: NightPlan, planned: PlannedCase, case: NightCase, bad: Sequence[CaseRun]) -> Iterator[DueCase]:
    """One retry at a time; none where any of the bad runs is not to be tried again."""
    left = plan.retries - sum(run.purpose == "retry" for run in case.runs)
    faults = [infrastructure_fault(run.record) if run.record else None for run in bad]
    if left < 1 or not all(fault and fault.is_retried for fault in faults):
        return
    yield DueRun(planned, _next_number(plan, case), "retry", f"run {bad[0].number} ended by: {bad[0].infrastructure}")


def _confirmations(plan: NightPlan, planned: PlannedCase, case: NightCase, suspicion: Suspicion) -> Iterator[DueCase]:
    """Once one was begun, all are made: what it measured must not decide whether the others are."""
    begun = [run for run in case.runs if run.purpose == "confirm"]
    left = plan.confirm - len(begun)
    reason = begun[0].reason if begun else suspicion(case) if left > 0 else ""
    if reason:
        first = _next_number(plan, case)
        yield from (DueRun(planned, first + offset, "confirm", reason) for offset in range(left))


def _next_number(plan: NightPlan, case: NightCase) -> int:
    """After those that are the repeats' and the A/A's."""
    return max([plan.aa_numbers(case.planned).stop, *(run.number + 1 for run in case.runs)])
