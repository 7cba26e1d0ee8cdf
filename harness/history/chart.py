"""Draws trends of throughput and memory."""

from datetime import UTC, datetime

from harness.errors import BadRequestError
from harness.history.cases import CaseHistory, GoldenBand
from harness.history.changes import change_text, changes, notable, setup_of
from harness.history.record import started
from harness.history.series import Night
from harness.show import chart as look
from harness.show.chart import Axis, Curve, Limit, Plane, Point, memory_unit
from harness.show.figures import figure
from harness.show.page import Picture
from harness.units import counted, format_percent, utc_time

_GOOD, _BAD, _UNSURE = "passed, or not judged", "regression, failed or out of memory", "inconclusive"
_GOLDEN, _MEDIANS = "golden and its threshold", "medians"
_LOOKS = {_GOOD: (look.BLUE, "circle"), _UNSURE: (look.ORANGE, "triangle"), _BAD: (look.VERMILION, "cross"),
          _GOLDEN: (look.TINT, "")}  # fmt: skip
_FAR, _DAYS = 1.5, 3 * 86400
_BAD_OUTCOMES = ("regression", "failed", "oom", "interrupted")


def trend_picture(history: CaseHistory) -> Picture:
    """Draw one point per night that has the figure; the bar through it spans the runs of the night.

    BadRequestError where no night has it.
    """
    metric, series = history.metric, history.series
    if not history.measured:
        raise BadRequestError(f"no night of this case has {metric.name}", remedy="name another --metric")
    unit, scale = _unit(history)
    nights = [(night, before) for night, before in zip(series.nights, (None, *series.nights), strict=False)
              if night.value(metric.name) is not None]  # fmt: skip
    points = tuple(_point(history, night, before, scale) for night, before in nights)
    medians = Curve(_MEDIANS, tuple((point.x, point.y) for point in points), colour=look.SKY)
    golden = _golden_in_sight(history)
    first, last = points[0].x, points[-1].x
    band = []
    if golden:
        low, high = golden.low / scale, golden.high / scale
        band = [Curve(_GOLDEN, ((first, high), (last, high)), below=(low, low), colour=look.TINT)]
    edges = tuple(
        Limit(utc_time(found.started_at).timestamp(), format_percent(found.change)) for found in history.change_points
    )
    lines = (Limit(golden.value / scale, "golden"),) if golden else ()
    axis = metric.title if metric.title == unit else f"{metric.title} ({unit})"
    form = "%Y-%m-%d" if last - first > _DAYS else "%m-%d %H:%M"
    dates = {at: f"{datetime.fromtimestamp(at, UTC):{form}}" for at in (first, (first + last) / 2, last)}
    chart = Plane(Axis("UTC", dates), Axis(axis), _LOOKS, points, (*band, medians), edges, lines)
    title = f"{metric.title} over {counted(len(series.nights), 'night')}"
    return Picture("trend", title, _caption(history), chart)


def _unit(history: CaseHistory) -> tuple[str, float]:
    values = [value for _, value in history.measured]
    match history.metric.unit:
        case "bytes":
            return memory_unit(values)
        case "s":
            return ("s", 1.0) if max(values) >= 1 else ("ms", 0.001)
        case unit:
            return unit, 1.0


def _point(history: CaseHistory, night: Night, before: Night | None, scale: float) -> Point:
    metric = history.metric
    values, value, spread = night.values(metric.name), night.value(metric.name), night.spread(metric.name)
    assert value is not None
    setup = setup_of(night)
    changed = "; ".join(map(change_text, notable(changes(before, night)))) if before else ""
    versions = ", ".join(f"{name} {text}" for name, text in night.last.versions.items() if text)
    machine = (f"{name} {setup[name]}" for name in ("driver", "device", "container", "commit", "host") if setup[name])
    runs = "one run" if spread is None else f"{spread * 100:.1f} % between {len(values)} runs"
    note = ". ".join(
        filter(None, (f"{night.id}: {figure(metric, value)}, {night.outcome}", runs, changed, versions, *machine))
    )
    upwards = min(values) / scale, max(values) / scale
    return Point(started(night.records[0]).timestamp(), value / scale, _state(night), note=note, upwards=upwards)


def _state(night: Night) -> str:
    if night.outcome in _BAD_OUTCOMES:
        return _BAD
    return _UNSURE if night.outcome in ("inconclusive", "suspect") else _GOOD


def _golden_in_sight(history: CaseHistory) -> GoldenBand | None:
    """Return the golden, unless it is so far off that the nights would be squeezed into a line."""
    values, golden = [value for _, value in history.measured], history.golden
    near = golden is not None and golden.low < _FAR * max(values) and golden.high > min(values) / _FAR
    return golden if near else None


def _caption(history: CaseHistory) -> str:
    missing = len(history.nights) - len(history.measured)
    text = "Medians over the runs of a night that ended well; bars span the runs. The axis does not begin at zero."
    if golden := history.golden:
        where = "on green" if _golden_in_sight(history) else "outside the chart"
        text += f" The golden, {golden.text(history.metric)}, is {where}."
    if history.change_points:
        levels = ", ".join(format_percent(found.change) for found in history.change_points)
        text += f" Dashed lines mark level changes: {levels}."
    return text + (f" Not shown: {counted(missing, 'night')} without this metric." if missing else "")
