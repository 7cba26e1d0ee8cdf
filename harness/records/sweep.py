"""What a sweep leaves behind: ``sweep.json``, its cells before the first one started, and events as they happen.

A cell's runs are ordinary run folders under ``cells/<NNN>/<repeat>``; their ``record.json`` is what commits them. What
became of a cell is derived from these files on reading, so that a sweep that was killed and resumed reads like one
that was not.
"""

from typing import Literal

from pydantic import Field

from harness.records.imported import LAUNCHER as IMPORT
from harness.records.prediction import PredictionRecord
from harness.records.rank import SCHEMA_VERSION
from harness.spec.experiment import ExperimentSpec
from harness.spec.frozen import Frozen
from harness.spec.rules.finding import Finding
from harness.spec.software import Software

Fate = Literal["run", "pruned", "skipped_inert", "illegal"]


class Axis(Frozen):
    """One thing that is varied, e.g. ``recompute`` or ``env.PYTORCH_CUDA_ALLOC_CONF``, and its values as text."""

    name: str
    values: tuple[str, ...]


class PlannedCell(Frozen):
    """One cell as planned. ``changes``: its value of every axis; ``name``: those that differ from the control's.

    ``fate``: whether it was to run; where it was not, ``reason`` says why and, for ``skipped_inert``, ``same_as`` names
    the cell that it equals in effect. ``spec`` is None for an illegal cell that could not be resolved. ``sources`` and
    ``notes`` are those of its runs.
    """

    index: int
    name: str
    changes: dict[str, str]
    recompute: str
    fate: Fate
    spec: ExperimentSpec | None = None
    reason: str = ""
    same_as: str | None = None
    sources: dict[str, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    prediction: PredictionRecord | None = None
    no_prediction: str = ""


class SweepLaunch(Frozen):
    """How the runs are launched, in the words of `mbr-perf run`; ``pass_env`` holds names, never values.

    With several nodes the others follow the first through the shared folder; address and port are where they meet.
    """

    launcher: str = "torchrun"
    replay_from: str | None = None
    timeout_s: float | None = None
    hang_timeout_s: float = 600.0
    sample_interval_ms: int = 50
    pass_env: tuple[str, ...] = ()
    nnodes: int = 1
    master_addr: str | None = None
    master_port: int | None = None


class SweepGate(Frozen):
    """How the cells are held against golden values, in the words of `mbr-perf run`."""

    golden_values_path: str | None = None
    timing_threshold: float | None = None
    memory_threshold: float | None = None
    accept_differences: tuple[str, ...] = ()
    fail_on_improvement: bool = False
    require_golden: bool = False


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
    cells: tuple[PlannedCell, ...]
    capacity_bytes: int | None = None
    margin: float = 0.06
    prune: bool = True
    max_minutes: float | None = None
    launch: SweepLaunch = SweepLaunch()
    gate: SweepGate = SweepGate()
    software: Software | None = None
    notes: tuple[str, ...] = ()
    command: tuple[str, ...]
    started_at: str
    mbr_perf: str

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
