"""Draws trends of throughput and memory."""

import math
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

import altair as alt

from harness.history.cases import CaseHistory, GoldenBand, LevelChange
from harness.history.changes import change_text, changes, notable, setup_of
from harness.history.files import started
from harness.history.record import HistoryRecord
from harness.history.series import Night
from harness.history.show import level_change_text
from harness.records.run import Provenance
from harness.show.charts import drawing as look
from harness.show.charts.drawing import memory_unit, time_unit
from harness.show.figures import figure
from harness.show.html import html
from harness.show.page import Facts, Page, Picture, listing, plain
from harness.show.provenance import machine_facts
from harness.units import counted, format_percent, utc_time

_HEIGHT = 340
_GOOD, _BAD, _UNSURE = "passed, or not judged", "regression, failed or out of memory", "inconclusive"
_MOST_TICKS = 12
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
    rows = _rows(history, scale)
    golden, edges = _golden_layers(history, scale), _edge_layers(history)
    axis = metric.title if metric.title == unit else f"{metric.title} ({unit})"
    chart = alt.layer(*golden, *edges, *_night_layers(rows, axis, _domain(history, rows, scale)))
    sized = chart.properties(width=look.WIDTH, height=_HEIGHT)
    return look.picture(name, title, series.case, sized, _caption(history))


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


def _domain(history: CaseHistory, rows: Sequence[look.Row], scale: float) -> alt.Scale:
    """Return a scale with room for every run and for the golden band."""
    lows, highs = ([float(str(row[side])) for row in rows] for side in ("low", "high"))
    low, high = min(lows), max(highs)
    golden = _golden_in_sight(history)
    if golden:
        low, high = min(low, golden.low / scale), max(high, golden.high / scale)
    room = (high - low) * 0.08 or abs(high) * 0.02
    return alt.Scale(domain=[low - room, high + room], nice=False, zero=False)


def _night_layers(rows: Sequence[look.Row], title: str, domain: alt.Scale) -> list[alt.Chart]:
    base = look.frame(rows)
    x = _time(rows)
    y = alt.Y("value:Q", title=title, scale=domain)
    present = [state for state in _COLOURS if any(row["state"] == state for row in rows)]
    legend = alt.Legend(orient="bottom", values=present) if present != [_GOOD] else None
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


def _time(rows: Sequence[look.Row]) -> alt.X:
    """Return a time axis of days, in UTC; of hours for less than two days."""
    first, last = (datetime.fromisoformat(str(rows[at]["time"])) for at in (0, -1))
    days = (last - first).days
    ticks = alt.TimeIntervalStep(interval="day", step=math.ceil(days / _MOST_TICKS)) if days > 1 else alt.Undefined
    axis = alt.Axis(format="%Y-%m-%d" if days > 1 else "%m-%d %H:%M", tickCount=ticks, labelOverlap="greedy")
    return alt.X("time:T", title="UTC", scale=alt.Scale(type="utc", padding=12), axis=axis)


def _golden_layers(history: CaseHistory, scale: float) -> list[alt.Chart]:
    golden = _golden_in_sight(history)
    if golden is None:
        return []
    row: look.Row = {
        "low": golden.low / scale,
        "high": golden.high / scale,
        "golden": golden.value / scale,
        "text": f"golden {figure(history.metric, golden.value)} ± {golden.threshold * 100:g} %",
    }
    base = look.frame([row])
    words = base.mark_text(align="left", dx=6, color=look.GREEN, fontSize=look.LABEL_SIZE)
    return [
        base.mark_rect(color=look.GREEN, opacity=0.10).encode(y=alt.Y("low:Q"), y2="high:Q"),
        base.mark_rule(color=look.GREEN, strokeDash=[6, 4]).encode(y="golden:Q"),
        words.encode(y="golden:Q", x=alt.value(look.WIDTH), text="text:N"),
    ]


def _edge_layers(history: CaseHistory) -> list[alt.LayerChart | alt.FacetChart]:
    """Return a line where each level begins, with the change."""
    if not history.change_points:
        return []
    marks: list[look.Row] = [_edge(found) for found in history.change_points]
    base = look.frame(marks)
    lines = base.mark_rule(color=look.VERMILION, strokeDash=[4, 3], strokeWidth=1.4).encode(
        x="time:T", tooltip=["change:N", "changed:N"]
    )
    words = base.mark_text(align="left", dx=4, color=look.VERMILION, fontSize=look.LABEL_SIZE).encode(
        x="time:T", y=alt.value(10), text="change:N"
    )
    return [alt.layer(lines, words)]


def _edge(found: LevelChange) -> look.Row:
    return {
        "time": utc_time(found.started_at).isoformat(),
        "change": format_percent(found.change),
        "changed": "; ".join(map(change_text, found.changed)) or "no recorded change of software or machine",
    }


def _caption(history: CaseHistory) -> str:
    missing = len(history.series.nights) - len(history.measured)
    text = "Medians over the runs of a night that ended well; bars span the runs. The axis does not begin at zero."
    if history.golden and not _golden_in_sight(history):
        text += f" The golden, {figure(history.metric, history.golden.value)}, is outside the chart."
    if history.change_points:
        text += " Dashed lines mark level changes."
    elif history.no_change_points:
        text += f" {history.no_change_points}"
    return text + (f" Not shown: {counted(missing, 'night')} without this metric." if missing else "")


def write_trend(history: CaseHistory, path: Path) -> Path:
    """Write the chart over an existing file. BadRequestError if it cannot be written, or has no figures."""
    drawn = trend_picture(history)
    lines = [plain(level_change_text(history, found)) for found in history.change_points]
    below = listing((*lines, *history.series.notes))
    page = Page((*_head(history), drawn, below), title=f"History of {history.series.case}")
    return look.write_chart("--chart", path, drawn, partial(html, page), remedy="name another --metric")


def _head(history: CaseHistory) -> list[Facts]:
    """Hardware and software of the newest night, as other reports begin with them."""
    newest = history.series.nights[-1:]
    runs = [_provenance(record) for night in newest for record in night.counted or night.records]
    return [machine_facts(runs, [("Newest night", started(night.records[0]).isoformat()[:10])]) for night in newest]


def _provenance(record: HistoryRecord) -> Provenance:
    """What history keeps of a run's provenance; the rest is empty, and the head leaves it out."""
    kept = {name: getattr(record, name) for name in Provenance.model_fields if name in HistoryRecord.model_fields}
    absent = dict.fromkeys(("finished_at", "mbr_perf", "platform", "processor"), "")
    return Provenance.model_validate({**kept, **absent, "command": (), "git_branch": record.branch})
