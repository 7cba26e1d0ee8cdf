"""A night as a batch: rounds of repeats, retries, confirmations and A/A runs; why each was started is an event."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from typing_extensions import override

from harness.batch.plan import Batch, PlannedRun, now, run_of
from harness.errors import BadRequestError
from harness.experiment.software import Software
from harness.launch.environment import Host
from harness.night.due import DueCase, due_round
from harness.records.batches import BatchLaunch
from harness.records.night import NightEvent, NightPlan, PlannedCase
from harness.records.nights import CASES, NightCase, read_night, run_dir_of, run_id_of
from harness.run.launched import Ran

Kind = Literal["started", "interrupted", "cancelled"]


@dataclass
class NightBatch(Batch[PlannedCase]):
    """The cases of ``plan`` at work in the night's folder. ``suspicion``: why a case looks like a regression, if it does."""

    plan: NightPlan
    suspicion: Callable[[NightCase], str] = lambda _: ""
    command: ClassVar[Literal["run", "sweep", "nightly"]] = "nightly"
    predicts: ClassVar[bool] = True
    outlives_failed_starts: ClassVar[bool] = True
    _noted: set[tuple[str, int]] = field(default_factory=set)

    @override
    def due(self) -> tuple[DueCase, ...]:
        """The next round."""
        return due_round(read_night(self.folder), self.suspicion)

    @override
    def planned(self, due: DueCase) -> PlannedRun:
        """``cases/<case>/<number>``, with the time limit of the case, where it has one."""
        case, launch = due.entry, self.plan.launch
        if case.timeout_s is not None:
            launch = launch.model_copy(update={"timeout_s": case.timeout_s})
        return PlannedRun(
            run_dir=run_dir_of(self.folder, case.name, due.number),
            run_id=run_id_of(self.plan.night_id, case.name, due.number),
            title=_title(due),
            launch=launch,
            software=self.plan.software.get(case.spec.gpu, Software()),
        )

    @override
    def recorded(self, due: DueCase) -> Path | None:
        """The recorded run that is replayed: of a recorded night the run of that number or its last one, else the folder."""
        source = self.plan.launch.replay_from
        if source is None or not (Path(source) / CASES).is_dir():
            return Path(source) if source else None
        runs = [path for path in (Path(source) / CASES / due.entry.name).glob("[0-9]*") if path.name.isdecimal()]
        if not runs:
            raise BadRequestError(
                f"{source}: holds no run of {due.entry.name}", remedy="replay a night of the same cases"
            )
        runs = sorted(runs, key=lambda path: (len(path.name), path.name))
        return next((path for path in runs if path.name == str(due.number)), runs[-1])

    @override
    def starts(self, due: DueCase) -> None:
        """What the run is for, once in this sitting."""
        if (due.entry.name, due.number) not in self._noted:
            self._noted.add((due.entry.name, due.number))
            self._event("started", due, due.reason)

    @override
    def interrupted(self, reason: str, due: DueCase | None = None) -> None:
        """Also between two runs."""
        self._event("interrupted", due, reason)

    @override
    def cancelled(self, due: DueCase, reason: str) -> None:
        """Someone ended the job of the run; the run starts again only when the night is resumed."""
        self._event("cancelled", due, reason)

    @override
    def ended(self, due: DueCase, ran: Ran) -> tuple[()]:
        """Runs of other cases teach nothing."""
        return ()

    def finished(self, at: str) -> None:
        """Every case has what it needs, at the time that the reports tell."""
        self.note(NightEvent(time=at, kind="finished"))

    def _event(self, kind: Kind, due: DueCase | None, reason: str) -> None:
        number = due.number if due else None
        purpose = due.purpose if due and kind == "started" else None
        case = due.entry.name if due else ""
        self.note(NightEvent(time=now(), kind=kind, case=case, number=number, purpose=purpose, reason=reason))


def _title(due: DueCase) -> str:
    """``llama3_8b, run 2 of 3``, or what else it is for."""
    if due.purpose == "repeat":
        return run_of(due.entry.name, due.number, due.entry.repeats)
    if due.purpose == "aa":
        return f"{due.entry.name}, A/A: {due.reason}"
    return f"{due.entry.name}, {'again' if due.purpose == 'retry' else 'to confirm'}: {due.reason}"


def unstarted_night(plan: NightPlan, host: Host, launch: BatchLaunch) -> NightBatch:
    """The batch of a plan that has no folder yet, launched like that."""
    return NightBatch(Path("NIGHT"), host, plan.model_copy(update={"launch": launch}))
