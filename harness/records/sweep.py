"""The files of a sweep: ``sweep.json``, events, and runs in ``cells/<NNN>/<repeat>``, which say how cells ended."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from harness.experiment.frozen import Frozen
from harness.experiment.gpu import SPARE
from harness.experiment.software import Software
from harness.records.batches import SWEEP_FOLDERS, BatchLaunch, Build, EntryWords, PlannedEntry, read_events
from harness.records.gating import GateOptions
from harness.records.rank import Recorded
from harness.records.run import RunRecord
from harness.records.store import RECORD, read_record
from harness.records.strict_json import read_document


class Axis(Frozen):
    """A varied setting, e.g. ``recompute`` or ``env.PYTORCH_CUDA_ALLOC_CONF``, and its values as text."""

    name: str
    values: tuple[str, ...]


class _CellWords(EntryWords):
    """``changes``: the cell's value on every axis. ``name``: the values that differ from the control's."""

    index: int
    changes: dict[str, str]
    recompute: str


class PlannedCell(PlannedEntry, _CellWords):
    """A cell that can run."""

    fate: Literal["run"] = "run"
    reason: Literal[""] = ""
    same_as: None = None


class RefusedCell(_CellWords):
    """A cell that does not run, and why. ``same_as``: the cell with the same effect. ``spec`` None: not resolved."""

    fate: Literal["pruned", "skipped_inert", "illegal"]
    reason: str
    same_as: str | None = None


Cell = Annotated[PlannedCell | RefusedCell, Field(discriminator="fate")]


class Compared(BaseModel):
    """What a sweep compares. ``control``: the name of a cell. ``margin``: the share of capacity that stays free."""

    title: str
    recipe: str
    gpu: str
    control: str
    axes: tuple[Axis, ...]
    repeats: int
    capacity_bytes: int | None = None
    margin: float = SPARE
    notes: tuple[str, ...] = ()


class SweepPlan(Compared, Recorded):
    """``sweep.json``. ``software``: that the rules assumed. ``builds``: environments by value of axis ``python``."""

    sweep_id: str
    grid: bool
    cells: tuple[Cell, ...]
    prune: bool = True
    launch: BatchLaunch = BatchLaunch()
    gate: GateOptions = GateOptions()
    software: Software | None = None
    builds: dict[str, Build] = Field(default_factory=dict)
    command: tuple[str, ...]
    started_at: str
    mbr_perf: str

    @property
    def planned(self) -> tuple[PlannedCell, ...]:
        return tuple(cell for cell in self.cells if isinstance(cell, PlannedCell))


class SweepEvent(Frozen):
    """A decision during the sweep. ``taught``: an OOM (``by``) showed that ``cell`` cannot fit."""

    time: str
    kind: Literal["taught", "interrupted"]
    cell: str
    reason: str
    by: str | None = None


SWEEP, CELLS = SWEEP_FOLDERS.mark, SWEEP_FOLDERS.entries
# A run with such a status is final: no other run of its cell is started. An interrupted run is repeated.
_FINAL = ("oom", "failed")

CellFate = Literal["run", "pruned", "skipped_inert", "illegal", "not_run"]


@dataclass(frozen=True)
class CellData:
    """A cell, its committed runs, and ``reason``: why there is none, or fewer than the plan's repeats."""

    planned: Cell
    runs: tuple[RunRecord, ...]
    fate: CellFate
    reason: str


@dataclass(frozen=True)
class SweepData:
    """A sweep read from disk, finished or not. Cells are in the plan's order, events in the order of writing."""

    sweep_dir: Path
    plan: SweepPlan
    cells: tuple[CellData, ...]
    events: tuple[SweepEvent, ...]

    @property
    def control(self) -> CellData:
        return next(cell for cell in self.cells if cell.planned.name == self.plan.control)

    @property
    def num_due(self) -> int:
        return sum(num_missing(cell, self.plan.repeats) for cell in self.cells)


def run_dir_of(sweep_dir: Path, cell_index: int, repeat: int) -> Path:
    """Return the folder of a cell's run; both numbers count from 0."""
    return sweep_dir / CELLS / f"{cell_index:03d}" / str(repeat)


def read_sweep(
    reference: str | Path, results: Path | None = None, count: Callable[[Sequence[Cell]], Iterable[Cell]] = iter
) -> SweepData:
    """Read a sweep; ``count`` may show progress. BadRequestError as :meth:`BatchFolders.folder_of`, or if damaged."""
    sweep_dir = SWEEP_FOLDERS.folder_of(reference, results)
    plan, events = read_document(sweep_dir / SWEEP, SweepPlan), read_events(sweep_dir, SweepEvent)
    return SweepData(sweep_dir, plan, tuple(_cell(sweep_dir, plan, cell, events) for cell in count(plan.cells)), events)


def _cell(sweep_dir: Path, plan: SweepPlan, planned: Cell, events: Iterable[SweepEvent]) -> CellData:
    if isinstance(planned, RefusedCell):
        return CellData(planned, (), planned.fate, planned.reason)
    records = (run_dir_of(sweep_dir, planned.index, repeat) / RECORD for repeat in range(plan.repeats))
    runs = tuple(read_record(path) for path in records if path.is_file())
    last = next((event for event in reversed(tuple(events)) if event.cell == planned.name), None)
    if runs:
        return CellData(planned, runs, "run", _fewer(runs, plan.repeats, last))
    if last and last.kind == "taught":
        return CellData(planned, (), "pruned", last.reason)
    return CellData(planned, (), "not_run", last.reason if last else "the sweep ended before it")


def _fewer(runs: tuple[RunRecord, ...], repeats: int, last: SweepEvent | None) -> str:
    num_whole = sum(run.status != "interrupted" for run in runs)
    bad = next((run.status for run in runs if run.status in _FINAL), None)
    why = last.reason if last else "the sweep ended before the rest"
    if bad:
        why = f"a run that is {bad} is not repeated"
    elif num_whole < len(runs):
        why = "a run was interrupted; --resume repeats it"
    return "" if num_whole == repeats else f"{num_whole} of {repeats} runs: {why}"


def num_missing(cell: CellData, repeats: int) -> int:
    """Return how many runs of the cell a resumed sweep would start. A failed run is final and is not repeated."""
    if cell.fate == "not_run":
        return repeats
    if cell.fate != "run" or any(run.status in _FINAL for run in cell.runs):
        return 0
    return max(0, repeats - sum(run.status == "ok" for run in cell.runs))
