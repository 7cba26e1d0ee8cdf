"""The plan of a sweep, and the verdicts on its cells with their trade-offs, as values that are their JSON."""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from harness.experiment.experiment import ExperimentSpec
from harness.foreign.exporting import ToPaste
from harness.judge.gate import Comparison, Finding, Verdict
from harness.judge.saving import MemorySaving, RankSaving
from harness.judge.statistics import TimeChange
from harness.measure.prediction import limits_of
from harness.measure.values import Launch, NotPredicted, OutOfMemory, PredictedAndMeasured
from harness.predict.limits import Limits
from harness.records.metrics import Metric, Metrics, Speed, cell_figure
from harness.records.prediction import PredictionRecord
from harness.records.redact import redact_shapes
from harness.records.run import RunRecord
from harness.records.sweep import Cell, CellData, Compared, PlannedCell, RefusedCell, SweepPlan
from harness.show.json import Document, Refusing, Shown, Text, at
from harness.units import GIB

Price = tuple[float | None, tuple[float, float] | None]


def trade_off(time: TimeChange | None, memory: MemorySaving | None) -> Price:
    """Return milliseconds per GiB saved, and the 95 % interval, of the time alone; negative: it saves both.

    None where memory is within the noise of identical runs, or where no difference in time is established.
    """
    if time is None or memory is None or memory.saved_bytes <= memory.noise_bytes or time.is_settled is False:
        return None, None
    per_gib = 1000 / (memory.saved_bytes / GIB)
    interval = None
    if time.interval is not None and time.fraction:
        control_s = time.seconds / time.fraction
        interval = (time.interval[0] * control_s * per_gib, time.interval[1] * control_s * per_gib)
    return time.seconds * per_gib, interval


CellStatus = Literal["ok", "oom", "failed", "pruned", "skipped_inert", "illegal", "not_run", "interrupted"]


class Versus(Shown):
    """A cell against the control or its stand-in. ``time_rescaled``: the time is for the control's tokens per step."""

    time_change: float | None = at("time", "fraction")
    time_change_interval: tuple[float, float] | None = at("time", "interval")
    time_change_s: float | None = at("time", "seconds")
    time_rescaled: bool = False
    memory_saved_bytes: int | None = at("memory", "saved_bytes")
    memory_noise_bytes: int | None = at("memory", "noise_bytes")
    saved_bytes: dict[str, int] = at("memory", "saved_by_metric", default={})
    ranks: tuple[RankSaving, ...] = at("memory", "ranks", default=())
    ms_per_gib_saved: float | None = None
    ms_per_gib_saved_interval: tuple[float, float] | None = None


class CellPrediction(PredictedAndMeasured):
    """``overhead``: predicted change of step time against the control, by seconds or by FLOPs."""

    overhead: float | None
    measured_overhead: float | None


class CellGolden(Shown):
    """A cell against its golden."""

    path: Annotated[Text, BeforeValidator(lambda path: redact_shapes(path or ""))] = at("golden_path")
    outcome: Verdict
    comparison: tuple[Finding, ...] = at("findings")


@dataclass(frozen=True)
class MeasuredCell:
    """A cell with the figures of its good ``runs``. ``costs_s``: of each, for the control's tokens per GPU."""

    data: CellData
    status: CellStatus
    reason: str
    runs: tuple[RunRecord, ...]
    metrics: Metrics | None
    speed: Speed | None
    costs_s: tuple[float, ...]
    doubts: tuple[str, ...]

    @property
    def planned(self) -> Cell:
        return self.data.planned

    @property
    def name(self) -> str:
        return self.planned.name

    @property
    def spec(self) -> ExperimentSpec | None:
        return self.planned.spec

    @property
    def cost_s(self) -> float | None:
        return fmean(self.costs_s) if self.costs_s else None

    @property
    def prediction(self) -> PredictionRecord | None:
        """Return the prediction made before the sweep, else before the run."""
        return self.planned.prediction or next((run.prediction for run in self.data.runs if run.prediction), None)


class CellVerdict(Shown):
    """The verdict on a cell. ``fits``: None where no memory is known. ``pareto``: it is on the Pareto front.

    ``oom_peak_bytes``: what tensors of the worst rank held until memory ran out.
    """

    planned: PlannedCell | RefusedCell = Field(exclude=True)
    costs_s: tuple[float, ...] = Field(exclude=True)
    compared: Comparison | None = Field(exclude=True)
    index: int = at("planned", "index")
    name: str
    changes: dict[str, str] = at("planned", "changes")
    recompute: str = at("planned", "recompute")
    status: CellStatus
    reason: Text
    is_control: bool = Field(serialization_alias="control")
    pareto: bool = False
    num_runs: int
    fingerprint: str | None = at("spec", "fingerprint")
    metrics: Metrics | None
    speed: Speed | None
    cost_s: float | None = Field(serialization_alias="seconds_per_control_step")
    capacity_bytes: int | None = at("spec", "capacity_bytes")
    fits: bool | None
    doubts: tuple[str, ...]
    out_of_memory: OutOfMemory | None
    oom_peak_bytes: int | None
    vs_control: Versus | None
    vs_reference: Versus | None
    not_compared: Text
    prediction: CellPrediction | NotPredicted | None
    golden: CellGolden | None = at("compared")

    @property
    def spec(self) -> ExperimentSpec | None:
        return self.planned.spec

    @property
    def predicted(self) -> CellPrediction | None:
        return self.prediction if isinstance(self.prediction, CellPrediction) else None

    @property
    def versus(self) -> Versus:
        """Return the comparison with the control, or else with its stand-in; one without figures if there is none."""
        return self.vs_control or self.vs_reference or Versus()

    @property
    def state(self) -> str:
        """Return the status in words, with a mark for a cell in doubt and for one without the margin."""
        if self.status == "ok":
            return "ok, in doubt" if self.doubts else "ok, no margin" if self.fits is False else "ok"
        return self.status.replace("_", " ").replace("oom", "OOM")

    def figure(self, metric: Metric) -> float | None:
        """Return the value of a metric that every report shows for this cell."""
        return cell_figure(metric, self.metrics, self.speed)

    @property
    def peak_bytes(self) -> int | None:
        peak = self.metrics.peak_allocated_bytes if self.metrics else None
        return peak.value if peak else None

    @property
    def is_comparable(self) -> bool:
        return self.status == "ok" and not self.doubts and self.cost_s is not None and self.peak_bytes is not None


@dataclass(frozen=True)
class Recommendation:
    """The cell to use, and why. ``noise``: why the ``equally_fast``, of which none is faster for sure, have no rank."""

    cell: str | None
    why: str
    equally_fast: tuple[str, ...] = ()
    noise: str = ""


class SweepVerdict(Compared, Document):
    """A whole sweep: ``mbr-perf report --json`` and ``report.json``. ``report``: the files that were written.

    ``pareto``: names of cells, cheapest first. ``equally_fast``: the fastest cell that fits, and those that it is not
    established to be faster than. ``notes``: the plan's and more. ``reference``: the fastest cell that ran, in
    place of a control without figures; ``reference_why``: why it has none.
    ``bridge``, ``megatron_lm``: the recommended cell as overrides and arguments of other programs; null without one, or
    where they have no words for a change. ``without``: the arguments that must go.
    """

    plan: SweepPlan = Field(exclude=True)
    recommendation: Recommendation = Field(exclude=True)
    to_paste: ToPaste | None = Field(exclude=True)
    sweep_id: str
    started_at: str
    command: tuple[str, ...]
    cells: tuple[CellVerdict, ...]
    pareto: tuple[str, ...]
    recommended: str | None = at("recommendation", "cell")
    equally_fast: tuple[str, ...] = at("recommendation", "equally_fast")
    bridge: str | None = at("to_paste", "bridge")
    megatron_lm: str | None = at("to_paste", "megatron_lm")
    without: tuple[str, ...] | None = at("to_paste", "without")
    num_runs_missing: int
    why: str = at("recommendation", "why")
    reference: str | None
    reference_why: str | None
    report: tuple[Path, ...] = ()

    def cell(self, name: str) -> CellVerdict:
        """Return the cell of that name; KeyError for none."""
        return {cell.name: cell for cell in self.cells}[name]

    @property
    def limits(self) -> list[Limits]:
        """Return what the allocator may use on a rank: several if layout or limit is varied, from the least on."""
        return limits_of((cell.spec for cell in self.cells), self.plan.margin)

    def counted(self, status: CellStatus) -> int:
        """Return the number of cells with this status."""
        return sum(cell.status == status for cell in self.cells)


class SweepRunDocument(SweepVerdict):
    """``mbr-perf sweep --json``."""

    sweep_dir: Path


class PlannedCellRow(Shown):
    """A cell before it runs. ``rules``: those that refuse it; ``same_as``: the cell that it equals in effect."""

    index: int
    name: str
    changes: dict[str, str]
    recompute: str
    fate: Literal["run", "pruned", "skipped_inert", "illegal"]
    reason: Text
    same_as: str | None
    rules: Refusing = at("findings")
    fingerprint: str | None = at("spec", "fingerprint")
    prediction: PredictionRecord | None
    no_prediction: Text


class SweepPlanDocument(Compared, Document):
    """``mbr-perf sweep --dryrun --json``."""

    dryrun: Literal[True] = True
    grid: bool
    cells: tuple[PlannedCellRow, ...]


class SweepJobPlanDocument(SweepPlanDocument):
    """``mbr-perf sweep --launcher slurm|kubeflow --dryrun --json``."""

    job: Launch
