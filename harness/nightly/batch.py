"""A night as a batch: rounds of repeats, retries, confirmations and pairs; why each was started is an event."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import ClassVar, Literal

from typing_extensions import override

from harness.batch.batch import Batch, DueRun, PlannedRun, run_of
from harness.errors import BadRequestError
from harness.experiment.software import Software
from harness.launch.environment import Host
from harness.measure.launched import Ran
from harness.nightly.outcome import case_runs, effective_runs, infrastructure_fault
from harness.nightly.values import CaseRun
from harness.records.batches import BatchLaunch
from harness.records.night import (
    CASES,
    OLD,
    NightCase,
    NightData,
    NightEvent,
    NightPlan,
    PlannedCase,
    RefusedCase,
    pair_label,
    read_night,
    run_dir_of,
)
from harness.records.references import run_id_of
from harness.units import utc_now

DueCase = DueRun[PlannedCase]
Suspicion = Callable[[NightCase], str]
"""Why a case whose repeats are done looks like a regression; empty where it does not."""


def due_round(data: NightData, suspicion: Suspicion) -> tuple[DueCase, ...]:
    """Return the next round; empty when all cases are complete. Interleaves: a run of every case, then the second."""
    each = [due_runs(data.plan, case, suspicion) for case in data.cases]
    return tuple(due for layer in zip_longest(*each) for due in layer if due is not None)


def due_runs(plan: NightPlan, case: NightCase, suspicion: Suspicion) -> tuple[DueCase, ...]:
    """Return the due runs of a case. A failed run ends it, unless a named fault ended it and a retry is left."""
    planned = case.planned
    if isinstance(planned, RefusedCase):
        return ()
    runs = effective_runs(case_runs(case.runs))
    bad = [run for run in runs if run.record and run.record.status in ("failed", "oom")]
    if bad:
        return tuple(_retries(plan, planned, case, bad))
    new = sorted({*range(planned.repeats)} - {run.number for run in case.runs})
    missing = (*_begun(planned, case), *(DueRun(planned, number, "repeat") for number in new))
    if missing and not any(run.purpose == "confirm" for run in case.runs):
        return missing
    further = _confirmations if plan.against is None else _pairs
    return (*missing, *further(plan, planned, case, suspicion))


def _pairs(plan: NightPlan, planned: PlannedCase, case: NightCase, suspicion: Suspicion) -> Iterator[DueCase]:
    """Yield the missing runs of old and new build in turn; none after one ended badly, which no other replaces."""
    ended = {run.number: run.record.status for run in case.pair_runs if run.record}
    is_over = bool({"failed", "oom"} & set(ended.values()))
    if plan.against is None or is_over or not (case.pair_runs or suspicion(case)):
        return
    first = case.pair_runs[0].number if case.pair_runs else _next_number(case)
    for place, number in enumerate(range(first, first + 2 * plan.against.num_pairs)):
        if ended.get(number, "interrupted") == "interrupted":
            yield DueRun(planned, number, "pair", pair_label(place))


def _begun(planned: PlannedCase, case: NightCase) -> Iterator[DueCase]:
    for run in case.runs:
        if run.record is None or run.record.status == "interrupted":
            why = f"again, because it last ended by: {run.cancelled}" if run.cancelled else ""
            yield DueRun(planned, run.number, run.purpose, "; ".join(filter(None, (run.reason, why))))


def _retries(plan: NightPlan, planned: PlannedCase, case: NightCase, bad: Sequence[CaseRun]) -> Iterator[DueCase]:
    """Yield one retry at a time; none if one of the bad runs must not be retried."""
    left = plan.retries - sum(run.purpose == "retry" for run in case.runs)
    faults = [infrastructure_fault(run.record) if run.record else None for run in bad]
    if left < 1 or not all(fault and fault.retry == "at_once" for fault in faults):
        return
    yield DueRun(planned, _next_number(case), "retry", f"run {bad[0].number} ended by: {bad[0].infrastructure}")


def _confirmations(plan: NightPlan, planned: PlannedCase, case: NightCase, suspicion: Suspicion) -> Iterator[DueCase]:
    """Yield all of them, once the first has begun: its result must not decide whether the others run."""
    begun = [run for run in case.runs if run.purpose == "confirm"]
    left = plan.confirm - len(begun)
    reason = begun[0].reason if begun else suspicion(case) if left > 0 else ""
    if reason:
        first = _next_number(case)
        yield from (DueRun(planned, first + offset, "confirm", reason) for offset in range(left))


def _next_number(case: NightCase) -> int:
    return max([case.planned.repeats, *(run.number + 1 for run in (*case.runs, *case.pair_runs))])


@dataclass
class NightBatch(Batch[PlannedCase]):
    """The cases of ``plan`` at work in the night's folder. ``suspicion``: why a case looks like a regression."""

    plan: NightPlan
    suspicion: Callable[[NightCase], str] = lambda _: ""
    command: ClassVar[Literal["sweep", "nightly"]] = "nightly"
    predicts: ClassVar[bool] = True
    outlives_failed_starts: ClassVar[bool] = True
    _noted: set[tuple[str, int]] = field(default_factory=set)

    @override
    def due(self) -> tuple[DueCase, ...]:
        """Return the next round."""
        return due_round(read_night(self.folder), self.suspicion)

    @override
    def planned(self, due: DueCase) -> PlannedRun:
        """Return the run in ``cases/<case>/<number>``, with the time limit of the case, if any."""
        case, launch = due.entry, self.plan.launch
        is_old = (due.purpose, due.reason) == ("pair", OLD)
        if case.timeout_s is not None:
            launch = launch.model_copy(update={"timeout_s": case.timeout_s})
        return PlannedRun(
            run_dir=run_dir_of(self.folder, case.name, due.number),
            run_id=run_id_of(self.plan.night_id, case.name, due.number),
            title=_title(due),
            launch=launch,
            software=self.plan.software.get(case.spec.gpu, Software()),
            build=self.plan.against.build if self.plan.against and is_old else None,
        )

    @override
    def recorded(self, due: DueCase) -> Path | None:
        """Return the run to replay: of a recorded night the run with that number or the last, else the folder."""
        source = self.plan.launch.replay_from
        if source is None or not (source / CASES).is_dir():
            return source
        runs = [path for path in (source / CASES / due.entry.name).glob("[0-9]*") if path.name.isdecimal()]
        if not runs:
            raise BadRequestError(
                f"{source}: contains no run of {due.entry.name}", remedy="replay a night of the same cases"
            )
        runs = sorted(runs, key=lambda path: (len(path.name), path.name))
        return next((path for path in runs if path.name == str(due.number)), runs[-1])

    @override
    def starts(self, due: DueCase) -> None:
        """Record the purpose of the run, once in this sitting."""
        if (due.entry.name, due.number) not in self._noted:
            self._noted.add((due.entry.name, due.number))
            self._event("started", due, due.reason)

    @override
    def interrupted(self, reason: str, due: DueCase | None = None) -> None:
        """Record that a signal ended the night, during a run or between two."""
        self._event("interrupted", due, reason)

    @override
    def cancelled(self, due: DueCase, reason: str) -> None:
        """Record that someone cancelled the job of the run; only a resumed night starts the run again."""
        self._event("cancelled", due, reason)

    @override
    def ended(self, due: DueCase, ran: Ran) -> tuple[()]:
        """Close no other entry: cases are independent."""
        return ()

    def finished(self, at: str) -> None:
        """Record that the night is finished, at the time that the reports show."""
        self.note(NightEvent(time=at, kind="finished"))

    def _event(self, kind: Literal["started", "interrupted", "cancelled"], due: DueCase | None, reason: str) -> None:
        number = due.number if due else None
        purpose = due.purpose if due and kind == "started" else None
        case = due.entry.name if due else ""
        self.note(NightEvent(time=utc_now(), kind=kind, case=case, number=number, purpose=purpose, reason=reason))


def _title(due: DueCase) -> str:
    if due.purpose == "repeat":
        return run_of(due.entry.name, due.number, due.entry.repeats)
    if due.purpose == "pair":
        return f"{due.entry.name}, {due.reason} build"
    return f"{due.entry.name}, {'again' if due.purpose == 'retry' else 'to confirm'}: {due.reason}"


def unstarted_night(plan: NightPlan, host: Host, launch: BatchLaunch) -> NightBatch:
    """Return the batch of a plan that has no folder yet, launched like that."""
    return NightBatch(Path("NIGHT"), host, plan.model_copy(update={"launch": launch}))
