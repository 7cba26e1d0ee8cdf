"""The verdicts on cells and their trade-offs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from harness.experiment.experiment import ExperimentSpec
from harness.judge.gate import Comparison
from harness.judge.saving import MemorySaving
from harness.judge.statistics import TimeChange
from harness.measure.prediction import limits_for
from harness.predict.limits import Limits
from harness.records.metrics import Metric, Metrics, Speed, cell_figure
from harness.records.prediction import PredictionRecord
from harness.records.run import RunRecord
from harness.records.sweep import Cell, CellData, SweepPlan
from harness.units import GIB, format_bytes

if TYPE_CHECKING:
    from harness.foreign.exporting import ToPaste


@dataclass(frozen=True)
class TradeOff:
    """``ms_per_gib_saved`` and its 95 % interval where the time has one. None with the reason in ``undefined``.

    Negative: the cell saves memory and time.
    """

    ms_per_gib_saved: float | None
    interval: tuple[float, float] | None = None
    undefined: str = ""


def trade_off(time: TimeChange | None, memory: MemorySaving | None) -> TradeOff:
    """Divide time by memory saved; undefined if memory is within noise or the time's interval holds 0.

    The interval is that of the time alone.
    """
    if time is None or memory is None:
        missing = "time" if time is None else "memory"
        return TradeOff(None, undefined=f"no {missing} to compare")
    if memory.saved_bytes <= memory.noise_bytes:
        return TradeOff(None, undefined=_too_little(memory))
    if time.is_settled is False:
        return TradeOff(None, undefined="no difference in time is established (its 95 % interval contains 0)")
    per_gib = 1000 / (memory.saved_bytes / GIB)
    interval = None
    if time.interval is not None and time.fraction:
        control_s = time.seconds / time.fraction
        interval = (time.interval[0] * control_s * per_gib, time.interval[1] * control_s * per_gib)
    return TradeOff(time.seconds * per_gib, interval)


def _too_little(memory: MemorySaving) -> str:
    noise = format_bytes(memory.noise_bytes)
    if memory.saved_bytes < -memory.noise_bytes:
        return f"it takes {format_bytes(-memory.saved_bytes)} more memory"
    return f"it saves {format_bytes(memory.saved_bytes)}, which is within the noise of identical runs ({noise})"


CellStatus = Literal["ok", "oom", "failed", "pruned", "skipped_inert", "illegal", "not_run", "interrupted"]


@dataclass(frozen=True)
class OomLine:
    """Where a cell ran out of memory; ``rank`` and ``stage`` are None if unknown. ``verdict``: class and cause.

    ``peak_allocated_bytes``: of the worst rank, up to where the run ended; it wanted more.
    """

    rank: int | None
    stage: int | None
    when: str
    request_bytes: int | None
    limit_bytes: int | None
    verdict: str
    peak_allocated_bytes: int | None = None


@dataclass(frozen=True)
class VsControl:
    """A cell against the control. ``time_problem`` and ``memory_problem`` say why one of them is absent.

    ``rescaled``: the two do not train the same tokens per GPU and step, so the cell's time is for the control's tokens.
    """

    time: TimeChange | None
    memory: MemorySaving | None
    trade: TradeOff
    time_problem: str = ""
    memory_problem: str = ""
    rescaled: bool = False


@dataclass(frozen=True)
class Predicted:
    """A prediction and its measurement. Errors are predicted / measured - 1; None without both.

    ``overhead``: predicted change of step time against the control, by seconds or, where none are predicted, by FLOPs.
    """

    prediction: PredictionRecord
    peak_error: float | None
    step_time_error: float | None
    overhead: float | None
    measured_overhead: float | None


@dataclass(frozen=True)
class MeasuredCell:
    """A cell with its figures. ``runs`` ended well; ``metrics`` are theirs, None without runs.

    ``costs_s``: seconds of a step of each run, for the control's tokens per GPU. ``speed`` is what is shown and
    compared. ``reason``: why a cell is not ok, or what the reader should know of an ok cell. ``doubts`` keep a cell out
    of the Pareto set.
    """

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
    def prediction(self) -> PredictionRecord | None:
        """Return the prediction made before the sweep, else before the run."""
        return self.planned.prediction or next((run.prediction for run in self.data.runs if run.prediction), None)


@dataclass(frozen=True)
class CellVerdict(MeasuredCell):
    """The verdict on a cell. ``fits``: None where no memory is known.

    ``vs_reference``: against the cell that stands in for a control without figures; ``is_reference``: it is that cell.
    """

    is_control: bool
    fits: bool | None
    oom: OomLine | None
    vs_control: VsControl | None
    vs_reference: VsControl | None
    is_reference: bool
    no_comparison: str
    predicted: Predicted | None
    no_prediction: str
    golden: Comparison | None

    @property
    def cost_s(self) -> float | None:
        return fmean(self.costs_s) if self.costs_s else None

    @property
    def versus(self) -> VsControl | None:
        """Return the comparison with the control, or else with the cell that replaces it."""
        return self.vs_control or self.vs_reference

    @property
    def capacity_bytes(self) -> int | None:
        return self.spec.capacity_bytes if self.spec else None

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
    """The cell to use, None where there is none, and why in one sentence.

    ``tie``: which cells may be equally fast, and why; empty where ``cell`` is established to be the fastest.
    """

    cell: str | None
    why: str
    tie: str = ""


@dataclass(frozen=True)
class SweepVerdict:
    """A whole sweep. ``pareto``: names of cells, cheapest first. ``num_due``: runs still to do.

    ``notes``: the plan's and more.
    ``reference``: the cell that the others are compared with, or None; ``reference_why``: why it is not the control.
    """

    plan: SweepPlan
    reference: str | None
    reference_why: str
    cells: tuple[CellVerdict, ...]
    pareto: tuple[str, ...]
    recommendation: Recommendation
    num_due: int
    notes: tuple[str, ...]

    def cell(self, name: str) -> CellVerdict:
        """Return the cell of that name; KeyError for none."""
        for cell in self.cells:
            if cell.name == name:
                return cell
        raise KeyError(name)

    @cached_property
    def to_paste(self) -> "ToPaste | None":
        """Return the recommended cell in words of other programs.

        None without one, or where they have no words for a change.
        """
        from harness.foreign.exporting import sayable, to_paste

        control = self.cell(self.plan.control).spec
        best = self.cell(self.recommendation.cell).spec if self.recommendation.cell else None
        if best is None or control is None or not sayable(best, control):
            return None
        return to_paste(best, control)

    @property
    def limits(self) -> list[Limits]:
        """Return what the allocator may use on a rank: several if layout or limit is varied, from the least on."""
        return limits_of((cell.spec for cell in self.cells), self.plan.margin)

    @property
    def has_repeats(self) -> bool:
        return any(cell.speed is not None and cell.speed.num_runs > 1 for cell in self.cells)

    def counted(self, status: CellStatus) -> int:
        """Return the number of cells with this status."""
        return sum(cell.status == status for cell in self.cells)


def limits_of(specs: Iterable[ExperimentSpec | None], margin: float) -> list[Limits]:
    """Return the limits of the cells whose memory is known, each once, from the least on."""
    found = {each.budget_bytes: each for spec in specs if spec for each in [limits_for(spec, margin)]}
    return [found[size] for size in sorted(size for size in found if size is not None)]


def room_text(limits: Sequence[Limits]) -> str:
    """Return ``fit into 73.08 GiB``, with the least and the most where they differ; only for known memory."""
    sizes = dict.fromkeys(format_bytes(each.budget_bytes or 0) for each in (limits[0], limits[-1]))
    return f"fit into {' to '.join(sizes)}"
