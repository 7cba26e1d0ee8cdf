"""What a sweep leaves behind: ``sweep.json``, its cells before the first one started, and events as they happen.

A cell's runs are ordinary run folders under ``cells/<NNN>/<repeat>``; their ``record.json`` is what commits them. What
became of a cell is derived from these files on reading, so that a sweep that was killed and resumed reads like one
that was not.
"""

from typing import Literal

from harness.records.prediction import PredictionRecord
from harness.records.rank import SCHEMA_VERSION
from harness.spec.experiment import ExperimentSpec
from harness.spec.frozen import Frozen
from harness.spec.rules.finding import Finding

Fate = Literal["run", "pruned", "skipped_inert", "illegal"]


class Axis(Frozen):
    """One thing that is varied, e.g. ``recompute`` or ``env.PYTORCH_CUDA_ALLOC_CONF``, and its values as text."""

    name: str
    values: tuple[str, ...]


class PlannedCell(Frozen):
    """One cell as planned. ``changes``: its value of every axis; ``name``: those that differ from the control's.

    ``fate``: whether it was to run; where it was not, ``reason`` says why and, for ``skipped_inert``, ``same_as`` names
    the cell that it equals in effect. ``spec`` is None for an illegal cell that could not be resolved.
    """

    index: int
    name: str
    changes: dict[str, str]
    recompute: str
    fate: Fate
    spec: ExperimentSpec | None = None
    reason: str = ""
    same_as: str | None = None
    findings: tuple[Finding, ...] = ()
    prediction: PredictionRecord | None = None
    no_prediction: str = ""


class SweepPlan(Frozen):
    """``sweep.json``: all that was decided before the first cell started. ``control`` is the name of a cell.

    ``capacity_bytes``: the memory that predictions were held against; None where it is not known. ``margin``:
    the share of it that is to stay free of tensors.
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
    cells: tuple[PlannedCell, ...]
    capacity_bytes: int | None = None
    margin: float = 0.06
    prune: bool = True
    max_minutes: float | None = None
    notes: tuple[str, ...] = ()
    command: tuple[str, ...]
    started_at: str
    mbr_perf: str


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
