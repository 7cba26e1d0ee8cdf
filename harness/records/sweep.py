"""What a sweep leaves behind: ``sweep.json``, its cells before the first one started, and events as they happen.

A cell's runs are ordinary run folders under ``cells/<NNN>/<repeat>``; their ``record.json`` is what commits them. What
became of a cell is derived from these files on reading, so that a sweep that was killed and resumed reads like one
that was not.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from harness.errors import BadRequestError
from harness.experiment.gpu import MARGIN, Frozen
from harness.experiment.software import Software
from harness.records.batches import SWEEP_FOLDERS, BatchLaunch, EntryWords, PlannedEntry, read_events
from harness.records.goldens import GateOptions
from harness.records.rank import SCHEMA_VERSION
from harness.records.run import LAUNCHER as IMPORT
from harness.records.run import RunRecord
from harness.records.store import RECORD, read_record
from harness.records.strict_json import read_document


class Axis(Frozen):
    """One thing that is varied, e.g. ``recompute`` or ``env.PYTORCH_CUDA_ALLOC_CONF``, and its values as text."""

    name: str
    values: tuple[str, ...]


class _CellWords(EntryWords):
    """``changes``: the cell's value of every axis; ``name``: those that differ from the control's."""

    index: int
    changes: dict[str, str]
    recompute: str


class PlannedCell(PlannedEntry, _CellWords):
    """A cell that is to run."""

    fate: Literal["run"] = "run"
    reason: Literal[""] = ""
    same_as: None = None


class RefusedCell(_CellWords):
    """A cell that does not run, and why. ``skipped_inert``: it equals the cell ``same_as`` in effect.

    ``spec`` is None for an illegal cell that could not be resolved.
    """

    fate: Literal["pruned", "skipped_inert", "illegal"]
    reason: str
    same_as: str | None = None


Cell = Annotated[PlannedCell | RefusedCell, Field(discriminator="fate")]


class SweepPlan(Frozen):
    """``sweep.json``: all that was decided before the first cell started. ``control`` is the name of a cell.

    ``capacity_bytes``: the control's memory per rank, None where it is not known; where ``memory_limit`` is varied each
    cell is held to its own. ``margin``: the share of it that is to stay free of tensors. ``software``: what the cells were judged for and are to run with.
    """

    schema_version: int = SCHEMA_VERSION
    sweep_id: str
    title: str
    recipe: str
    gpu: str
    control: str
    axes: tuple[Axis, ...]
    grid: bool
    repeats: int
    cells: tuple[Cell, ...]
    capacity_bytes: int | None = None
    margin: float = MARGIN
    prune: bool = True
    max_minutes: float | None = None
    launch: BatchLaunch = BatchLaunch()
    gate: GateOptions = GateOptions()
    software: Software | None = None
    notes: tuple[str, ...] = ()
    command: tuple[str, ...]
    started_at: str
    mbr_perf: str

    @property
    def planned(self) -> tuple[PlannedCell, ...]:
        """The cells that are to run."""
        return tuple(cell for cell in self.cells if isinstance(cell, PlannedCell))

    @property
    def is_imported(self) -> bool:
        """Whether its runs were read from training logs, so that none can be started."""
        return self.launch.launcher == IMPORT

    @property
    def capacities(self) -> frozenset[int | None]:
        """Memory per rank of the cells in bytes: one figure, or several where the limit is varied."""
        return frozenset(cell.spec.capacity_bytes for cell in self.cells if cell.spec)


class SweepEvent(Frozen):
    """A line of ``events.jsonl``: something decided while the sweep ran.

    ``taught``: an OOM (``by``) showed that ``cell`` cannot fit; ``budget``: it was not started for lack of time;
    ``interrupted``: a signal ended the sweep while ``cell`` ran.
    """

    time: str
    kind: Literal["taught", "budget", "interrupted"]
    cell: str
    reason: str
    by: str | None = None


SWEEP, CELLS = SWEEP_FOLDERS.mark, SWEEP_FOLDERS.entries
# A run that ended so is a result, and no other run of its cell is started; one that was interrupted is repeated.
_FINAL = ("oom", "failed")

CellFate = Literal["run", "pruned", "skipped_inert", "illegal", "not_run"]


@dataclass(frozen=True)
class CellData:
    """A cell and what became of it. ``runs``: its committed runs in order of repeat, also bad ones.

    ``fate`` is ``run`` as soon as there is one run; ``reason`` says why there is none, or why there are fewer than
    the plan's repeats.
    """

    planned: Cell
    runs: tuple[RunRecord, ...]
    fate: CellFate
    reason: str


@dataclass(frozen=True)
class SweepData:
    """A sweep as it lies on disk, finished or not; cells in the plan's order, events as they were written."""

    sweep_dir: Path
    plan: SweepPlan
    cells: tuple[CellData, ...]
    events: tuple[SweepEvent, ...]

    @property
    def control(self) -> CellData:
        """The cell that all others are compared with."""
        return next(cell for cell in self.cells if cell.planned.name == self.plan.control)

    @property
    def num_due(self) -> int:
        """Runs that a resumed sweep would still start; none of an imported one, whose cells have the logs there were."""
        return 0 if self.plan.is_imported else sum(num_missing(cell, self.plan.repeats) for cell in self.cells)


def made_sweep_dir(sweep_dir: Path) -> Path:
    """The folder that a person names, with its ``cells``. BadRequestError where it holds a sweep or cannot be made."""
    if (sweep_dir / SWEEP).exists() or any((sweep_dir / CELLS).glob("*")):
        raise BadRequestError(f"{sweep_dir} already holds a sweep", remedy="name a new folder, or --resume this one")
    try:
        (sweep_dir / CELLS).mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise BadRequestError(
            f"--sweep_dir {sweep_dir}: cannot be made: {error.strerror}", remedy="name a writable folder"
        ) from error
    return sweep_dir


def run_dir_of(sweep_dir: Path, cell_index: int, repeat: int) -> Path:
    """Where a cell's run lies; both counted from 0."""
    return sweep_dir / CELLS / f"{cell_index:03d}" / str(repeat)


def run_id_of(sweep_id: str, cell_index: int, repeat: int) -> str:
    """The id in the record of a cell's run."""
    return f"{sweep_id}.{cell_index:03d}.{repeat}"


def read_sweep(
    reference: str | Path, results: Path | None = None, count: Callable[[Sequence[Cell]], Iterable[Cell]] = iter
) -> SweepData:
    """Plan, committed runs and events of a sweep. Touches nothing on disk.

    ``count`` yields the cells that it gets, and may show how far the reading is.
    BadRequestError as for :meth:`BatchFolders.folder_of`, and for a file that is corrupt or newer than this program.
    """
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
        fewer = "" if plan.is_imported else _fewer(runs, plan.repeats, last)
        return CellData(planned, runs, "run", fewer)
    if last and last.kind == "taught":
        return CellData(planned, (), "pruned", last.reason)
    return CellData(planned, (), "not_run", last.reason if last else "the sweep ended before it")


def _fewer(runs: tuple[RunRecord, ...], repeats: int, last: SweepEvent | None) -> str:
    """Why a cell has fewer runs than were asked for; empty where it has them all."""
    cut = sum(run.status == "interrupted" for run in runs)
    if len(runs) - cut == repeats:
        return ""
    bad = next((run.status for run in runs if run.status in _FINAL), None)
    told = f"a run that is {bad} is not repeated" if bad else last.reason if last else "the sweep ended before the rest"
    why = "one was interrupted; --resume repeats it" if cut and not bad else told
    return f"{len(runs) - cut} of {repeats} runs: {why}"


def num_missing(cell: CellData, repeats: int) -> int:
    """How many runs of the cell a resumed sweep would still start: a bad run is a result and is not repeated."""
    if cell.fate == "not_run":
        return repeats
    if cell.fate != "run" or any(run.status in _FINAL for run in cell.runs):
        return 0
    return max(0, repeats - sum(run.status == "ok" for run in cell.runs))
