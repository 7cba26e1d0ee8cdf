"""The prediction of a run beside its measurement: as a document, and in one line."""

from harness.judging.metrics import Metrics
from harness.records.run import PredictionRecord, RunRecord
from harness.showing.json import Document
from harness.units import format_bytes, format_percent, format_seconds


def whole_run(record: RunRecord, metrics: Metrics) -> Metrics | None:
    """What a prediction is held against: the figures of a run that ended well; a peak so far would prove it wrong."""
    return metrics if record.status == "ok" else None


def prediction_document(
    record: PredictionRecord | None, reason: str = "", metrics: Metrics | None = None
) -> Document | None:
    """The keys of a `plan` row that a record holds, and with ``metrics`` what was measured; only the reason without one.

    Errors are predicted over measured, less one.
    """
    if record is None:
        return {"reason": reason} if reason else None
    time_range = record.step_time_range_s
    return {
        "peak_bytes": record.peak_bytes,
        "peak_range_bytes": list(record.range_bytes),
        "worst_stage": record.worst_stage.pp_rank,
        "peak": record.worst_stage.peak,
        "stages": [stage.model_dump(mode="json") for stage in record.stages],
        "step_time_s": record.step_time_s,
        "step_time_range_s": list(time_range) if time_range else None,
        "model_flops_per_step": record.model_flops,
        "recompute_flops_per_step": record.recompute_flops,
        "assumptions": list(record.assumptions),
        **(_measured(record, metrics) if metrics else {}),
    }


def _measured(record: PredictionRecord, metrics: Metrics) -> Document:
    peak = metrics.peak_allocated_bytes.value if metrics.peak_allocated_bytes else None
    seconds = metrics.step_time_s.median if metrics.step_time_s else None
    return {
        "measured_peak_bytes": peak,
        "peak_error": _error(record.peak_bytes, peak),
        "measured_step_time_s": seconds,
        "step_time_error": _error(record.step_time_s, seconds),
    }


def _error(predicted: float | None, measured: float | None) -> float | None:
    return predicted / measured - 1 if predicted is not None and measured else None


def prediction_line(record: PredictionRecord | None, reason: str, metrics: Metrics | None = None) -> str:
    """Predicted peak, and time where there is one, each with what was measured; empty for a record from before predictions."""
    if record is None:
        return f"Not predicted: {reason}" if reason else ""
    low, high = record.range_bytes
    peak = metrics.peak_allocated_bytes.value if metrics and metrics.peak_allocated_bytes else None
    said = (
        f"Predicted: peak {format_bytes(record.peak_bytes)}, {format_bytes(low)} to {format_bytes(high)}, "
        f"stage {record.worst_stage.pp_rank}" + _beside(record.peak_bytes, peak, format_bytes(peak or 0))
    )
    if record.step_time_s is None or record.step_time_range_s is None:
        return said
    fast, slow = record.step_time_range_s
    seconds = metrics.step_time_s.median if metrics and metrics.step_time_s else None
    return (
        f"{said}; step {format_seconds(record.step_time_s)}, {format_seconds(fast)} to {format_seconds(slow)}"
        + _beside(record.step_time_s, seconds, format_seconds(seconds or 0))
    )


def misfit_line(record: PredictionRecord | None, capacity_bytes: int | None) -> str:
    """A warning where even the least of what is predicted is above what a rank may use, else empty."""
    if record is None or capacity_bytes is None or record.range_bytes[0] <= capacity_bytes:
        return ""
    low, high = map(format_bytes, record.range_bytes)
    predicted = low if low == high else f"{low} to {high}"
    return f"Warning: predicted {predicted} do not fit into {format_bytes(capacity_bytes)}; a measurement decides"


def _beside(predicted: float, measured: float | None, text: str) -> str:
    error = _error(predicted, measured)
    return "" if error is None else f" (measured {text}, prediction {format_percent(error)})"
