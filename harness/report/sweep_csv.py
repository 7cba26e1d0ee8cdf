"""A sweep as CSV for spreadsheets: raw bytes and seconds, one row per cell."""

from harness.analysis.metrics import METRICS
from harness.analysis.sweep.values import CellVerdict, SweepVerdict
from harness.report.csv_text import Value, csv_text


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
        **_versus(cell),
        **_prediction(cell),
        "golden_outcome": cell.golden.outcome.value if cell.golden else None,
        "oom_rank": cell.oom.rank if cell.oom else None,
        "oom_request_bytes": cell.oom.request_bytes if cell.oom else None,
        "reason": cell.oom.verdict if cell.oom else cell.reason,
        "doubts": "; ".join(cell.doubts),
    }


def _versus(cell: CellVerdict) -> dict[str, Value]:
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
