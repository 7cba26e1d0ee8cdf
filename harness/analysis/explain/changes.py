"""The metrics of two sides, and by how much equal runs would differ in them."""

import math

from harness.analysis.explain.values import Change, Side
from harness.analysis.metrics import METRICS, SUMMARY_METRICS, Metric

# A figure that differs by less is the same, whatever its noise: nobody looks for the cause.
NOTHING = 0.002
_TWO_SIGMA = 2.0
_CPU_ROW = "what equal CPU runs were measured to differ by"


def changes(ours: Side, theirs: Side) -> tuple[Change, ...]:
    """Every metric that is gated or stored and that either side has."""
    return tuple(
        _change(metric, ours, theirs)
        for metric in METRICS
        if (metric.gate or metric.name in SUMMARY_METRICS)
        and (metric.name in ours.metrics or metric.name in theirs.metrics)
    )


def moved(change: Change) -> bool:
    """Whether there are two figures, and they differ."""
    return change.change is not None and abs(change.change) >= NOTHING


def _change(metric: Metric, ours: Side, theirs: Side) -> Change:
    here, there = ours.metrics.get(metric.name), theirs.metrics.get(metric.name)
    change = None if here is None or there is None else (here - there) / there
    noise, basis = (None, "") if change is None else _noise(metric, ours, theirs)
    return Change(metric.name, here, there, change, noise, basis)


def _noise(metric: Metric, ours: Side, theirs: Side) -> tuple[float | None, str]:
    """What two such figures of equal runs differ by in 19 of 20 cases, and where the spread of one run is known from."""
    known = [(side.spreads[metric.name], side) for side in (ours, theirs) if metric.name in side.spreads]
    if known:
        spread, side = max(known, key=lambda found: found[0])
        error = spread * math.sqrt(1 / ours.num_runs + 1 / theirs.num_runs)
        basis = side.spread_basis or f"the {side.num_runs} runs of the {side.kind}"
        return _TWO_SIGMA * error, f"{basis} spread by {spread * 100:.2f} %"
    if metric.gate == "exact":
        return 0.0, "counted, not measured"
    row = ours.spec.gpu_type if ours.spec else None
    if row is None or not row.is_cpu:
        return None, ""
    return (row.memory_threshold if metric.unit == "bytes" else row.timing_threshold), _CPU_ROW
