"""What a sweep leaves behind: ``sweep.json``, its cells before the first one started, and events as they happen.

A cell's runs are ordinary run folders under ``cells/<NNN>/<repeat>``; their ``record.json`` is what commits them. What
became of a cell is derived from these files on reading, so that a sweep that was killed and resumed reads like one
that was not.
"""

from typing import Annotated, Literal

from pydantic import Field

from harness.experiment.gpu import MARGIN, Frozen
from harness.experiment.software import Software
from harness.records.batches import BatchLaunch, EntryWords, PlannedEntry
from harness.records.goldens import GateOptions
from harness.records.imported import LAUNCHER as IMPORT
from harness.records.rank import SCHEMA_VERSION


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
