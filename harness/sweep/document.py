"""A sweep as JSON and as CSV."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from harness.judging.metrics import METRICS
from harness.judging.statistics import CONFIDENCE
from harness.records.redact import redact_shapes
from harness.run.predicting.shown import prediction_document
from harness.showing.figures import Value, csv_text
from harness.showing.json import SCHEMA_VERSION, Document, metrics_document
from harness.sweep.values import CellVerdict, SweepVerdict, VsControl


def sweep_document(verdict: SweepVerdict, reports: Iterable[Path] = ()) -> Document:
    """``mbr-perf sweep --json`` and ``report --json``; ``reports`` are the files that were written."""
    return {
        "schema_version": SCHEMA_VERSION,
        "sweep_id": verdict.sweep_id,
        "title": verdict.title,
        "recipe": verdict.recipe,
        "gpu": verdict.gpu,
        "started_at": verdict.started_at,
        "command": list(verdict.command),
        "axes": [axis.model_dump(mode="json") for axis in verdict.axes],
        "repeats": verdict.repeats,
        "capacity_bytes": verdict.capacity_bytes,
        "margin": verdict.margin,
        "control": verdict.control,
        "reference": verdict.reference,
        "reference_why": verdict.reference_why or None,
        "cells": [_cell(cell, verdict) for cell in verdict.cells],
        "pareto": list(verdict.pareto),
        "recommended": verdict.recommendation.cell,
        "num_runs_missing": verdict.num_due,
        "why": verdict.recommendation.why,
        "notes": list(verdict.notes),
        "report": [str(path) for path in reports],
    }


def _cell(cell: CellVerdict, verdict: SweepVerdict) -> Document:
    foretold = cell.foretold
    measured = cell.metrics if cell.status == "ok" else None
    prediction = prediction_document(foretold.prediction if foretold else None, cell.no_prediction, measured)
    if prediction is not None and foretold is not None:
        prediction |= {
            "measured_step_time_s": cell.speed.step_time_s if cell.speed else None,
            "step_time_error": foretold.step_time_error,
            "overhead": foretold.overhead,
            "measured_overhead": foretold.measured_overhead,
        }
    return {
        "index": cell.index,
        "name": cell.name,
        "changes": cell.changes,
        "recompute": cell.recompute,
        "status": cell.status,
        "reason": cell.reason or None,
        "control": cell.is_control,
        "pareto": cell.name in verdict.pareto,
        "num_runs": cell.num_runs,
        "fingerprint": cell.spec.fingerprint if cell.spec else None,
        "metrics": metrics_document(cell.metrics) if cell.metrics else None,
        "speed": asdict(cell.speed) if cell.speed else None,
        "seconds_per_control_step": cell.cost_s,
        "capacity_bytes": cell.capacity_bytes,
        "fits": cell.fits,
        "doubts": list(cell.doubts),
        "oom": asdict(cell.oom) if cell.oom else None,
        "vs_control": _versus(cell.vs_control) if cell.vs_control else None,
        "vs_reference": _versus(cell.vs_reference) if cell.vs_reference else None,
        "not_compared": cell.no_comparison or None,
        "prediction": prediction,
        "golden": _golden(cell),
    }


def _versus(versus: VsControl) -> Document:
    time, memory, trade = versus.time, versus.memory, versus.trade
    return {
        "time_change": time.fraction if time else None,
        "time_change_interval": list(time.interval) if time and time.interval else None,
        "time_change_s": time.seconds if time else None,
        "confidence": CONFIDENCE if time and time.interval else None,
        "basis": time.basis if time else versus.time_problem,
        "time_rescaled": versus.rescaled,
        "memory_saved_bytes": memory.saved_bytes if memory else None,
        "memory_noise_bytes": memory.noise_bytes if memory else None,
        "memory_problem": versus.memory_problem or None,
        "saved_bytes": memory.saved_by_metric if memory else {},
        "ranks": [asdict(rank) for rank in memory.ranks] if memory else [],
        "ms_per_gib_saved": trade.ms_per_gib_saved,
        "ms_per_gib_saved_interval": list(trade.interval) if trade.interval else None,
        "ms_per_gib_saved_undefined": trade.undefined or None,
    }


def _golden(cell: CellVerdict) -> Document | None:
    if cell.golden is None:
        return None
    findings = [asdict(f) | {"verdict": f.verdict.value, "reason": f.reason or None} for f in cell.golden.findings]
    path = redact_shapes(cell.golden.golden_path or "") or None
    return {"path": path, "outcome": cell.golden.outcome.value, "comparison": findings}


def sweep_csv(verdict: SweepVerdict) -> str:
    """Header and rows; step time and rates are each cell's speed (over repeats the mean)."""
    records = [_row(cell, verdict) for cell in verdict.cells]
    return csv_text(list(records[0]), (record.values() for record in records))


def _row(cell: CellVerdict, verdict: SweepVerdict) -> dict[str, Value]:
    return {
        "index": cell.index,
        "cell": cell.name,
        **{f"axis:{axis.name}": cell.changes.get(axis.name) for axis in verdict.axes},
        "recompute": cell.recompute,
        "status": cell.status,
        "control": cell.is_control,
        "reference": cell.name == verdict.reference,
        "pareto": cell.name in verdict.pareto,
        "recommended": cell.name == verdict.recommendation.cell,
        "fits": cell.fits,
        "num_runs": cell.num_runs,
        **{metric.name: cell.figure(metric) for metric in METRICS},
        **_csv_versus(cell),
        **_prediction(cell),
        "golden_outcome": cell.golden.outcome.value if cell.golden else None,
        "oom_rank": cell.oom.rank if cell.oom else None,
        "oom_request_bytes": cell.oom.request_bytes if cell.oom else None,
        "reason": cell.oom.verdict if cell.oom else cell.reason,
        "doubts": "; ".join(cell.doubts),
    }


def _csv_versus(cell: CellVerdict) -> dict[str, Value]:
    versus = cell.versus
    time, memory = (versus.time, versus.memory) if versus else (None, None)
    low, high = time.interval if time and time.interval else (None, None)
    return {
        "time_change": time.fraction if time else None,
        "time_change_low": low,
        "time_change_high": high,
        "memory_saved_bytes": memory.saved_bytes if memory else None,
        "ms_per_gib_saved": versus.trade.ms_per_gib_saved if versus else None,
    }


def _prediction(cell: CellVerdict) -> dict[str, Value]:
    foretold = cell.foretold
    return {
        "predicted_peak_bytes": foretold.prediction.peak_bytes if foretold else None,
        "peak_error": foretold.peak_error if foretold else None,
        "predicted_step_time_s": foretold.prediction.step_time_s if foretold else None,
        "predicted_time_change": foretold.overhead if foretold else None,
    }
