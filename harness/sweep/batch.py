"""A sweep as a batch: the due runs, their folders, and the cells that an out-of-memory error rules out."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from typing_extensions import override

from harness.batch.batch import Batch, DueRun, Lesson, PlannedRun, run_of
from harness.batch.launches import nodes_of
from harness.errors import BadRequestError, Problems
from harness.launch.required import require_machine
from harness.measure.launched import Ran
from harness.records.batches import read_events
from harness.records.goldens import find_golden
from harness.records.references import run_id_of
from harness.records.run import RunRecord, Status
from harness.records.store import RECORD, read_record
from harness.records.sweep import SWEEP, PlannedCell, SweepEvent, SweepPlan, read_sweep, run_dir_of
from harness.sweep.axes import PYTHON
from harness.units import format_bytes, utc_now

DueCell = DueRun[PlannedCell]
Place = tuple[int, int]
"""Index of a cell, repeat."""


@dataclass
class SweepBatch(Batch[PlannedCell]):
    """The cells of ``plan`` at work in the sweep's folder."""

    plan: SweepPlan
    command: ClassVar[Literal["sweep", "nightly"]] = "sweep"
    _done: dict[Place, Status] = field(default_factory=dict)
    _taught: set[str] = field(default_factory=set)

    def every_run(self) -> tuple[DueCell, ...]:
        """Return the cells once per repeat, round by round."""
        return tuple(DueRun(cell, repeat) for repeat in range(self.plan.repeats) for cell in self.plan.planned)

    @override
    def due(self) -> tuple[DueCell, ...]:
        """Return the runs still to do, by the records on disk. A run that ended badly is not repeated.

        It works out the lessons of an OOM again, because a kill may have come before they were recorded.
        """
        records = ((run.entry, self._newly_ended(run)) for run in self.every_run())
        # Keep only these: all records would fill the memory.
        out_of_memory = [(cell, record) for cell, record in records if record and record.status == "oom"]
        self._taught = {event.cell for event in read_events(self.folder, SweepEvent) if event.kind == "taught"}
        for cell, record in out_of_memory:
            self._learn(cell, record)
        bad = {index for (index, _), status in self._done.items() if status != "ok"}
        left = (run for run in self.every_run() if run.entry.index not in bad and run.entry.name not in self._taught)
        return tuple(run for run in left if _place(run) not in self._done)

    def _newly_ended(self, run: DueCell) -> RunRecord | None:
        """Return the record of a run that has ended since the last look; a committed record does not change."""
        path = self.planned(run).run_dir / RECORD
        if _place(run) in self._done or not path.is_file():
            return None
        record = read_record(path)
        if record.status == "interrupted":
            return None
        self._done[_place(run)] = record.status
        return record

    @override
    def planned(self, due: DueCell) -> PlannedRun:
        """Return the run in ``cells/<index>/<repeat>``, launched like all cells."""
        run_dir = run_dir_of(self.folder, *_place(due))
        return PlannedRun(
            run_dir=run_dir,
            run_id=run_id_of(self.plan.sweep_id, run_dir.parent.name, due.number),
            title=run_of(due.entry.name, due.number, self.plan.repeats),
            launch=self.plan.launch,
            software=self.plan.software,
            build=self.plan.builds.get(due.entry.changes.get(PYTHON, "")),
        )

    @override
    def recorded(self, due: DueCell) -> Path | None:
        """Return the run to replay: the given folder, or in a recorded sweep the run of an equal cell."""
        source = self.plan.launch.replay_from
        if source is None or not (source / SWEEP).is_file():
            return source
        recorded = read_sweep(source)
        twin = next((other for other in recorded.cells if other.planned.spec == due.entry.spec and other.runs), None)
        if twin is None:
            raise BadRequestError(
                f"{source}: contains no run of {due.entry.name}", remedy="replay a sweep of the same cells"
            )
        found = run_dir_of(recorded.sweep_dir, twin.planned.index, due.number)
        return found if found.is_dir() else run_dir_of(recorded.sweep_dir, twin.planned.index, 0)

    @override
    def ended(self, due: DueCell, ran: Ran) -> Sequence[Lesson]:
        """Return the lessons of the run about cells that have not run."""
        if ran.record.status == "interrupted":
            return ()
        self._done[_place(due)] = ran.record.status
        return self._learn(due.entry, ran.record)

    @override
    def interrupted(self, reason: str, due: DueCell | None = None) -> None:
        """Record the interruption of a run that was at work."""
        if due is not None:
            self.note(SweepEvent(time=utc_now(), kind="interrupted", cell=due.entry.name, reason=reason))

    def require_startable(self, node_rank: int = 0) -> None:
        """Raise one BadRequestError for all reasons why runs of the plan cannot start here. Starts nothing."""
        problems, golden = Problems(), self.plan.gate.golden_values_path
        for cell in self.plan.planned:
            with problems.collecting():
                self.understood(DueRun(cell, 0), Path("RUN"), node_rank)
            if self.plan.launch.launcher != "replay":
                with problems.collecting():
                    require_machine(
                        cell.spec,
                        self.host,
                        cell.spec.ranks_per_node(nodes_of(self.plan.launch).nnodes),
                        self.plan.software,
                    )
            with problems.collecting():
                find_golden(cell.spec, Path(golden) if golden else None)
        problems.raise_if_any()

    def _learn(self, cell: PlannedCell, record: RunRecord) -> tuple[Lesson, ...]:
        """Prune the cells that cannot fit after an OOM, and log it; cells that have run keep their results."""
        if record.status != "oom" or not self.plan.prune:
            return ()
        ran = {index for index, _ in self._done}
        others = [run for run in self.plan.planned if run.index not in ran and run.name not in self._taught]
        learned = tuple((other.name, why) for other, why in lessons(cell, record, others))
        for name, why in learned:
            self._taught.add(name)
            self.note(SweepEvent(time=utc_now(), kind="taught", cell=name, reason=why, by=cell.name))
        return learned


def _place(due: DueCell) -> Place:
    return due.entry.index, due.number


def lessons(
    taught_by: PlannedCell, record: RunRecord, others: Iterable[PlannedCell]
) -> Iterator[tuple[PlannedCell, str]]:
    """Yield the ``others`` that cannot fit, and why: they differ only in recompute and need as much memory there.

    Absolute predictions may be off, but they rank the settings of one layout correctly.
    """
    stages = sorted({rank.coordinates.pp for rank in record.ranks if rank.failure and rank.failure.kind == "oom"})
    for other in others:
        same_layout = taught_by.spec.model_copy(update={"recompute": other.spec.recompute}) == other.spec
        same_build = taught_by.changes.get(PYTHON) == other.changes.get(PYTHON)
        if other.index == taught_by.index or not (same_layout and same_build):
            continue
        for stage in stages:
            least, needed = _predicted(taught_by, stage), _predicted(other, stage)
            if least is not None and needed is not None and needed >= least:
                yield (
                    other,
                    (
                        f"predicted to need {format_bytes(needed)} on stage {stage}, where {taught_by.name} "
                        f"(predicted {format_bytes(least)}) ran out of memory"
                    ),
                )
                break


def _predicted(cell: PlannedCell, stage: int) -> int | None:
    rows = cell.prediction.stages if cell.prediction else ()
    return next((row.measurable for row in rows if row.pp_rank == stage), None)
