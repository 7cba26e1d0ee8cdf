"""Draws trends of throughput and memory."""

from datetime import UTC, datetime
from statistics import median

from harness.errors import BadRequestError
from harness.history.cases import CaseHistory
from harness.history.record import started
from harness.history.series import Night
from harness.records.metrics import Metric
from harness.show import chart as look
from harness.show.chart import Axis, Curve, Limit, Plane, Point, memory_unit
from harness.show.figures import figure
from harness.show.page import Picture
from harness.units import counted, format_percent, utc_time

_GOOD, _BAD, _UNSURE = "passed, or not judged", "regression, failed or out of memory", "inconclusive"
_GOLDEN, _MEDIANS = "golden and its threshold", "medians"
_LOOKS = {_GOOD: (look.BLUE, "circle"), _UNSURE: (look.ORANGE, "triangle"), _BAD: (look.VERMILION, "cross"),
          _GOLDEN: (look.TINT, "")}  # fmt: skip
_BAD_OUTCOMES = ("regression", "failed", "oom", "interrupted")


def trend_picture(history: CaseHistory) -> Picture:
    """Draw a point per night that has the figure. BadRequestError where none has it."""
    metric, golden = history.metric, history.golden
    if not history.measured:
        raise BadRequestError(f"no night of this case has {metric.name}", remedy="name another --metric")
    is_memory = metric.unit == "bytes"
    unit, scale = memory_unit([value for _, value in history.measured]) if is_memory else (metric.unit, 1.0)
    points = tuple(_point(night, metric, scale) for night, _ in history.measured)
    medians = Curve(_MEDIANS, tuple((point.x, point.y) for point in points), colour=look.SKY)
    first, last = points[0].x, points[-1].x
    band = []
    if golden:
        low, high = golden.low / scale, golden.high / scale
        band = [Curve(_GOLDEN, ((first, high), (last, high)), below=(low, low), colour=look.TINT)]
    edges = tuple(
        Limit(utc_time(found.started_at).timestamp(), format_percent(found.change)) for found in history.change_points
    )
    lines = (Limit(golden.value / scale, "golden"),) if golden else ()
    dates = {at: f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}" for at in (first, last)}
    axis = Axis(metric.title if metric.title == unit else f"{metric.title} ({unit})")
    chart = Plane(Axis("UTC", dates), axis, _LOOKS, points, (*band, medians), edges, lines)
    title = f"{metric.title}, {len(points)} of {counted(len(history.nights), 'night')}"
    return Picture("trend", title, _CAPTION, chart)


_CAPTION = (
    "Medians over the runs of a night that ended well; bars span the runs. Dashed lines mark level changes. The axis "
    "does not begin at zero."
)


def _point(night: Night, metric: Metric, scale: float) -> Point:
    values = [value / scale for value in night.values(metric.name)]
    value = median(values)
    note = f"{night.id}: {figure(metric, value * scale)}, {night.outcome}, {counted(len(values), 'run')}"
    when = started(night.records[0]).timestamp()
    return Point(when, value, _state(night), note=note, upwards=(min(values), max(values)))


def _state(night: Night) -> str:
    if night.outcome in _BAD_OUTCOMES:
        return _BAD
    return _UNSURE if night.outcome in ("inconclusive", "suspect") else _GOOD
