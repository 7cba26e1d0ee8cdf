"""The prediction of a run beside its measurement, in one line."""

from harness.judging.metrics import Metrics
from harness.records.run import PredictionRecord, RunRecord
from harness.units import format_bytes, format_percent, format_seconds


def whole_run(record: RunRecord, metrics: Metrics) -> Metrics | None:
    """What a prediction is held against: the figures of a run that ended well; a peak so far would prove it wrong."""
    return metrics if record.status == "ok" else None


def error_of(predicted: float | None, measured: float | None) -> float | None:
    """Predicted over measured, less one; None without both."""
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
    error = error_of(predicted, measured)
    return "" if error is None else f" (measured {text}, prediction {format_percent(error)})"
