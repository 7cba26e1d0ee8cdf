"""Draws trends of throughput and memory."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import altair as alt

from harness.history.cases import CaseHistory, GoldenBand
from harness.history.changes import change_text, changes, notable, setup_of
from harness.history.record import started
from harness.history.series import Night
from harness.history.show import level_change_text
from harness.show.charts import drawing as look
from harness.show.charts.drawing import memory_unit, time_unit
from harness.show.figures import figure
from harness.show.html import html
from harness.show.page import Page, Picture, listing, plain
from harness.units import counted, format_percent, utc_time

_HEIGHT = 340
_GOOD, _BAD, _UNSURE = "passed, or not judged", "regression, failed or out of memory", "inconclusive"
_FAR = 1.5
_COLOURS = {_GOOD: look.BLUE, _UNSURE: look.ORANGE, _BAD: look.VERMILION}
_SHAPES = {_GOOD: "circle", _UNSURE: "triangle-up", _BAD: "cross"}
_BAD_OUTCOMES = ("regression", "failed", "oom", "interrupted")


def trend_picture(history: CaseHistory) -> Picture:
    """Draw one point per night that has the figure; the bar through it spans the runs of the night."""
    metric, series = history.metric, history.series
    title, name = f"{metric.title} over {counted(len(series.nights), 'night')}", "trend"
    if not history.measured:
        return look.no_picture(name, title, f"No night of this case has {metric.name}.")
    unit, scale = _unit(history)
    axis = metric.title if metric.title == unit else f"{metric.title} ({unit})"
    layers = (*_golden_layers(history, scale), *_edge_layers(history), *_night_layers(_rows(history, scale), axis))
    chart = alt.layer(*layers).properties(width=look.WIDTH, height=_HEIGHT)
    return look.picture(name, title, series.case, chart, _caption(history))


def _unit(history: CaseHistory) -> tuple[str, float]:
    values = [value for _, value in history.measured]
    match history.metric.unit:
        case "bytes":
            return memory_unit(values)
        case "s":
            return time_unit(values)
        case unit:
            return unit, 1.0


def _rows(history: CaseHistory, scale: float) -> list[look.Row]:
    nights = history.series.nights
    return [
        _row(history, night, nights[number - 1] if number else None, scale)
        for number, night in enumerate(nights)
        if night.value(history.metric.name) is not None
    ]


def _row(history: CaseHistory, night: Night, before: Night | None, scale: float) -> look.Row:
    metric = history.metric
    values, value, spread = night.values(metric.name), night.value(metric.name), night.spread(metric.name)
    assert value is not None
    setup = setup_of(night)
    return {
        "time": started(night.records[0]).isoformat(),
        "value": value / scale,
        "low": min(values) / scale,
        "high": max(values) / scale,
        "state": _state(night),
        "night": night.id,
        "figure": figure(metric, value),
        "spread": "one run" if spread is None else f"{spread * 100:.1f} % between {len(values)} runs",
        "outcome": night.outcome,
        "versions": ", ".join(f"{name} {text}" for name, text in night.last.versions.items() if text),
        **{name: setup[name] or "-" for name in ("driver", "device", "container", "commit", "host")},
        "changed": "; ".join(map(change_text, notable(changes(before, night)))) if before else "",
    }


def _state(night: Night) -> str:
    if night.outcome in _BAD_OUTCOMES:
        return _BAD
    return _UNSURE if night.outcome in ("inconclusive", "suspect") else _GOOD


def _golden_in_sight(history: CaseHistory) -> GoldenBand | None:
    """Return the golden, unless it is so far off that the nights would be squeezed into a line."""
    values, golden = [value for _, value in history.measured], history.golden
    near = golden is not None and golden.low < _FAR * max(values) and golden.high > min(values) / _FAR
    return golden if near else None


def _night_layers(rows: Sequence[look.Row], title: str) -> list[alt.Chart]:
    base = look.frame(rows)
    x = alt.X("time:T", title="UTC", scale=alt.Scale(type="utc", padding=12), axis=alt.Axis(labelOverlap="greedy"))
    y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=False, padding=12))
    legend = look.legend(rows, "state", _COLOURS, orient="bottom")
    machine = ("versions", "driver", "device", "container", "commit", "host")
    shown = ("figure", "night", "time", "outcome", "spread", "changed", *machine)
    points = base.mark_point(filled=True, size=60, opacity=1, stroke="white", strokeWidth=0.6).encode(
        x=x,
        y=y,
        color=look.kinds(alt.Color, "state", _COLOURS, legend=legend),
        shape=look.kinds(alt.Shape, "state", _SHAPES, legend=legend),
        tooltip=[alt.Tooltip(f"{name}:N", title=name) for name in shown],
    )
    line = base.mark_line(color=look.BLUE, strokeWidth=1, opacity=0.5).encode(x=x, y=y)
    bars = base.mark_rule(color=look.SKY, strokeWidth=2, opacity=0.7).encode(x=x, y=alt.Y("low:Q"), y2="high:Q")
    return [bars, line, points]


def _golden_layers(history: CaseHistory, scale: float) -> list[alt.Chart]:
    golden = _golden_in_sight(history)
    if golden is None:
        return []
    base = look.frame([{"low": golden.low / scale, "high": golden.high / scale, "golden": golden.value / scale}])
    return [
        base.mark_rect(color=look.GREEN, opacity=0.10).encode(y=alt.Y("low:Q"), y2="high:Q"),
        base.mark_rule(color=look.GREEN, strokeDash=[6, 4]).encode(y="golden:Q"),
    ]


def _edge_layers(history: CaseHistory) -> list[alt.Chart]:
    marks: list[look.Row] = [
        {
            "time": utc_time(found.started_at).isoformat(),
            "change": format_percent(found.change),
            "changed": "; ".join(map(change_text, found.changed)) or "no recorded change of software or machine",
        }
        for found in history.change_points
    ]
    lines = look.frame(marks).mark_rule(color=look.VERMILION, strokeDash=[4, 3], strokeWidth=1.4)
    return [lines.encode(x="time:T", tooltip=["change:N", "changed:N"])] if marks else []


def _caption(history: CaseHistory) -> str:
    missing = len(history.series.nights) - len(history.measured)
    text = "Medians over the runs of a night that ended well; bars span the runs. The axis does not begin at zero."
    if golden := history.golden:
        where = "on green" if _golden_in_sight(history) else "outside the chart"
        text += f" The golden, {figure(history.metric, golden.value)} ± {golden.threshold * 100:g} %, is {where}."
    if history.change_points:
        levels = ", ".join(format_percent(found.change) for found in history.change_points)
        text += f" Dashed lines mark level changes: {levels}."
    elif history.no_change_points:
        text += f" {history.no_change_points}"
    return text + (f" Not shown: {counted(missing, 'night')} without this metric." if missing else "")


def write_trend(history: CaseHistory, path: Path) -> Path:
    """Write the chart over an existing file. BadRequestError if it cannot be written, or has no figures."""
    drawn = trend_picture(history)
    lines = [plain(level_change_text(history, found)) for found in history.change_points]
    below = listing((*lines, *history.series.notes))
    page = Page((drawn, below), title=f"History of {history.series.case}")
    return look.write_chart("--chart", path, drawn, partial(html, page), remedy="name another --metric")
