"""A sweep as JSON and as CSV."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator

from harness.judge.gate import Finding, Verdict
from harness.judge.saving import RankSaving
from harness.judge.statistics import CONFIDENCE
from harness.measure.values import Launch, NotPredicted, PredictedAndMeasured
from harness.records.metrics import METRICS, Metrics, Speed
from harness.records.prediction import PredictionRecord
from harness.records.redact import redact_shapes
from harness.records.sweep import Axis, Cell, SweepPlan
from harness.show.figures import Value, csv_text
from harness.show.json import Document, Shown, Text, at
from harness.sweep.values import CellStatus, CellVerdict, OomLine, SweepVerdict, VsControl


class Versus(Shown):
    """A cell against another. Intervals are 95 %; ``basis``: the runs behind the time, or why there is none."""

    time_change: float | None = at("time", "fraction")
    time_change_interval: tuple[float, float] | None = at("time", "interval")
    time_change_s: float | None = at("time", "seconds")
    confidence: float | None
    basis: str
    time_rescaled: bool = at("rescaled")
    memory_saved_bytes: int | None = at("memory", "saved_bytes")
    memory_noise_bytes: int | None = at("memory", "noise_bytes")
    memory_problem: Text
    saved_bytes: dict[str, int] = at("memory", "saved_by_metric", default={})
    ranks: tuple[RankSaving, ...] = at("memory", "ranks", default=())
    ms_per_gib_saved: float | None = at("trade", "ms_per_gib_saved")
    ms_per_gib_saved_interval: tuple[float, float] | None = at("trade", "interval")
    ms_per_gib_saved_undefined: Text = at("trade", "undefined")

    @classmethod
    def of_versus(cls, versus: VsControl | None) -> Self | None:
        """Return the comparison; None if nothing was compared."""
        if versus is None:
            return None
        time = versus.time
        basis = time.basis if time else versus.time_problem
        return cls.of(versus, basis=basis, confidence=CONFIDENCE if time and time.interval else None)


class CellPrediction(PredictedAndMeasured):
    """``overhead``: predicted change of step time against the control, by seconds or by FLOPs."""

    overhead: float | None
    measured_overhead: float | None


class CellGolden(Shown):
    """A cell against its golden."""

    path: Annotated[Text, BeforeValidator(lambda path: redact_shapes(path or ""))] = at("golden_path")
    outcome: Verdict
    comparison: tuple[Finding, ...] = at("findings")


class CellRow(Shown):
    """One cell. ``control`` and ``pareto``: whether it is the control, whether it is on the Pareto front."""

    index: int = at("planned", "index")
    name: str
    changes: dict[str, str] = at("planned", "changes")
    recompute: str = at("planned", "recompute")
    status: CellStatus
    reason: Text
    control: bool = at("is_control")
    pareto: bool
    num_runs: int
    fingerprint: str | None = at("spec", "fingerprint")
    metrics: Metrics | None
    speed: Speed | None
    seconds_per_control_step: float | None = at("cost_s")
    capacity_bytes: int | None
    fits: bool | None
    doubts: tuple[str, ...]
    oom: OomLine | None
    vs_control: Versus | None
    vs_reference: Versus | None
    not_compared: Text = at("no_comparison")
    prediction: CellPrediction | NotPredicted | None
    golden: CellGolden | None

    @classmethod
    def of_cell(cls, cell: CellVerdict, pareto: tuple[str, ...]) -> Self:
        """``pareto``: names of the cells on the front."""
        return cls.of(
            cell,
            num_runs=len(cell.runs),
            pareto=cell.name in pareto,
            prediction=_cell_prediction(cell),
            vs_control=Versus.of_versus(cell.vs_control),
            vs_reference=Versus.of_versus(cell.vs_reference),
        )


def _cell_prediction(cell: CellVerdict) -> CellPrediction | NotPredicted | None:
    predicted = cell.predicted
    if predicted is None:
        return NotPredicted(reason=cell.no_prediction) if cell.no_prediction else None
    more = {
        "measured_step_time_s": cell.speed.step_time_s if cell.speed else None,
        "step_time_error": predicted.step_time_error,
        "overhead": predicted.overhead,
        "measured_overhead": predicted.measured_overhead,
    }
    return CellPrediction.beside(predicted.prediction, cell.metrics if cell.status == "ok" else None, **more)


class SweepDocument(Document):
    """``mbr-perf report --json`` and ``report.json``. ``report``: the files that were written.

    ``bridge``, ``megatron_lm``, ``without``: the recommended cell as overrides and arguments of these programs, and the
    arguments that must go.
    """

    sweep_id: str
    title: str
    recipe: str
    gpu: str
    started_at: str
    command: tuple[str, ...]
    axes: tuple[Axis, ...]
    repeats: int
    capacity_bytes: int | None
    margin: float
    control: str
    reference: str | None
    reference_why: Text
    cells: tuple[CellRow, ...]
    pareto: tuple[str, ...]
    recommended: str | None = at("recommendation", "cell")
    bridge: str | None = at("to_paste", "bridge")
    megatron_lm: str | None = at("to_paste", "megatron_lm")
    without: tuple[str, ...] | None = at("to_paste", "without")
    num_runs_missing: int = at("num_due")
    why: str = at("recommendation", "why")
    notes: tuple[str, ...]
    report: tuple[Path, ...]

    @classmethod
    def of_verdict(cls, verdict: SweepVerdict, reports: Iterable[Path] = (), **more: object) -> Self:
        """``more``: the fields of a kind of sweep."""
        cells = [CellRow.of_cell(cell, verdict.pareto) for cell in verdict.cells]
        return cls.of(verdict, verdict.plan, cells=cells, report=tuple(reports), **more)


class SweepRunDocument(SweepDocument):
    """``mbr-perf sweep --json``. ``num_runs_due``: runs that are still to be done."""

    sweep_dir: Path
    num_runs_due: int


class PlannedCellRow(Shown):
    """A cell before it runs. ``rules``: those that refuse it; ``same_as``: the cell that it equals in effect."""

    index: int
    name: str
    changes: dict[str, str]
    recompute: str
    fate: Literal["run", "pruned", "skipped_inert", "illegal"]
    reason: Text
    same_as: str | None
    rules: tuple[str, ...]
    fingerprint: str | None = at("spec", "fingerprint")
    prediction: PredictionRecord | None
    no_prediction: Text

    @classmethod
    def of_cell(cls, cell: Cell) -> Self:
        """Return a planned or a refused cell."""
        return cls.of(cell, rules=[finding.id for finding in cell.findings if finding.blocks])


class SweepPlanDocument(Document):
    """``mbr-perf sweep --dryrun --json``."""

    dryrun: Literal[True] = True
    title: str
    recipe: str
    gpu: str
    control: str
    axes: tuple[Axis, ...]
    grid: bool
    repeats: int
    capacity_bytes: int | None
    margin: float
    notes: tuple[str, ...]
    cells: tuple[PlannedCellRow, ...]

    @classmethod
    def of_plan(cls, plan: SweepPlan, **more: object) -> Self:
        """``more``: the job of a sweep on Slurm."""
        return cls.of(plan, cells=[PlannedCellRow.of_cell(cell) for cell in plan.cells], **more)


class SweepJobPlanDocument(SweepPlanDocument):
    """``mbr-perf sweep --launcher slurm --dryrun --json``."""

    job: Launch


def sweep_csv(verdict: SweepVerdict) -> str:
    """Return header and rows; step time and rates are each cell's speed (over repeats the mean)."""
    records = [_row(cell, verdict) for cell in verdict.cells]
    return csv_text(list(records[0]), (record.values() for record in records))


_FIGURES = {
    "memory_saved_bytes": "versus.memory.saved_bytes",
    "ms_per_gib_saved": "versus.trade.ms_per_gib_saved",
    "predicted_peak_bytes": "predicted.prediction.peak_bytes",
    "peak_error": "predicted.peak_error",
    "predicted_reserved_bytes": "predicted.prediction.reserved_bytes",
    "predicted_fits_bytes": "predicted.prediction.fits_bytes",
    "predicted_step_time_s": "predicted.prediction.step_time_s",
    "predicted_time_change": "predicted.overhead",
    "golden_outcome": "golden.outcome.value",
    "oom_rank": "oom.rank",
    "oom_request_bytes": "oom.request_bytes",
}


def _row(cell: CellVerdict, verdict: SweepVerdict) -> dict[str, Value]:
    def at(path: str) -> Any:
        found: Any = cell
        for name in path.split("."):
            found = getattr(found, name, None)
        return found

    low, high = at("versus.time.interval") or (None, None)
    return {
        "index": cell.planned.index,
        "cell": cell.name,
        **{f"axis:{axis.name}": cell.planned.changes.get(axis.name) for axis in verdict.plan.axes},
        "recompute": cell.planned.recompute,
        "status": cell.status,
        "control": cell.is_control,
        "reference": cell.name == verdict.reference,
        "pareto": cell.name in verdict.pareto,
        "recommended": cell.name == verdict.recommendation.cell,
        "fits": cell.fits,
        "num_runs": len(cell.runs),
        **{metric.name: cell.figure(metric) for metric in METRICS},
        "time_change": at("versus.time.fraction"),
        "time_change_low": low,
        "time_change_high": high,
        **{name: at(path) for name, path in _FIGURES.items()},
        "reason": cell.oom.verdict if cell.oom else cell.reason,
        "doubts": "; ".join(cell.doubts),
    }
