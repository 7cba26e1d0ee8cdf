"""Draws a plan: memory by pipeline stage and part, and settings by memory and time. Imported only to draw."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from textwrap import wrap

import altair as alt

from harness.predict.advice import dominated
from harness.predict.prediction import Prediction
from harness.predict.search import Plan, Row
from harness.show.charts import drawing as look
from harness.show.charts.drawing import memory_unit, shortened
from harness.show.html import html
from harness.show.page import Page, Picture
from harness.show.request_text import request_rows
from harness.units import format_bytes, format_percent, format_seconds

_PARTS = {"weights": look.BLUE, "gradients": look.SKY, "optimizer": look.GREEN, "activations": look.ORANGE,
          "logits": look.PURPLE, "transient": look.VERMILION, "overhead": look.PALE}  # fmt: skip
_STATES = ("recommended", "without recompute", "Pareto set", "beaten by another")
_COLOURS = dict(zip(_STATES, (look.VERMILION, look.BLACK, look.BLUE, look.SKY), strict=True))
_SHAPES = dict(zip(_STATES, ("diamond", "triangle-up", "circle", "square"), strict=True))
_HEIGHT, _STAGES_HEIGHT = 400, 300
_MOST_PANELS = 3
_FAR = 2.5  # a limit that is this many times the highest peak would press all bars and points together


def write_png(path: Path, plan: Plan, layout: str) -> None:
    """Both pictures in one file. ``layout`` is its name where there are several.

    BadRequestError where it cannot be written.
    """
    parts = (_stages(plan), _plane(plan))
    charts = [chart.properties(title=_title(title, caption)) for title, chart, caption in parts]
    both = alt.vconcat(*charts, spacing=30).resolve_scale(color="independent", shape="independent")
    drawn = look.picture("plan", "Predicted memory and time", _about(plan, layout), both, "")
    look.write_chart("--png", path, drawn, lambda: "")


def _title(title: str, caption: str) -> alt.TitleParams:
    """Return a heading with the caption below it, for a file that has no text beside its picture."""
    lines = wrap(caption, 125)
    return alt.TitleParams(title, subtitle=lines, anchor="start", fontSize=13, subtitleColor=look.GREY, offset=10)


def plan_pictures(plan: Plan) -> tuple[Picture, Picture]:
    """Memory by stage and part, and settings by memory and time, each a picture of its own."""
    stages, plane = _stages(plan), _plane(plan)
    return (
        look.picture("memory_stages", stages[0], "", stages[1], stages[2]),
        look.picture("memory_time", plane[0], "", plane[1], plane[2]),
    )


def write_html(path: Path, plan: Plan, layout: str, page: Page) -> None:
    """Return the page with both pictures before its blocks. BadRequestError as :func:`write_png`."""
    drawn = plan_pictures(plan)
    whole = Page((*drawn, *page.blocks), title="Predicted memory and time", about="; ".join(_about(plan, layout)))
    look.write_chart("--html", path, drawn[0], partial(html, whole))


def _about(plan: Plan, layout: str) -> list[str]:
    """Return the request and its layout."""
    rows = dict(request_rows(plan.spec))
    return [rows["Recipe"], f"{layout}: {rows['Parallelism']}" if layout else rows["Parallelism"]]


def _named(plan: Plan) -> list[Row]:
    """Settings to show beside each other, at most three: recommended, asked for, none, least memory."""
    asked = (row for row in plan.rows if row.text == plan.spec.recompute.text)
    rows = [row for row in (plan.recommended, *asked, plan.control, _smallest(plan)) if row and row.prediction]
    return list({row.text: row for row in rows}.values())[:_MOST_PANELS]


def _smallest(plan: Plan) -> Row:
    """Return the setting with the lowest peak."""
    return min(
        (row for row in plan.rows if row.prediction), key=lambda r: r.prediction.peak_bytes if r.prediction else 0
    )


def _limits(plan: Plan, unit_bytes: float, most: float) -> list[look.Row]:
    """Return the memory and what the margin leaves of it, in units; empty where the memory is unknown or far off."""
    size, budget = plan.limits.capacity_bytes, plan.limits.budget_bytes
    if not size or not budget or size / unit_bytes > _FAR * most:
        return []
    return [
        {"at": size / unit_bytes, "text": f"memory {format_bytes(size)}", "kind": "memory"},
        {"at": budget / unit_bytes, "text": plan.limits.free_text, "kind": "margin"},
    ]


_DASHES: dict[str, object] = {"memory": [1, 0], "margin": [5, 4]}


def _off(plan: Plan, limits: Sequence[look.Row]) -> str:
    """Return a sentence for limits that no line shows."""
    if limits:
        return ""
    known = plan.limits.capacity_bytes
    return f" The memory, {format_bytes(known)}, is beyond the axis." if known else " The memory is not known."


def _stages(plan: Plan) -> tuple[str, "look.Chart", str]:
    """Title, chart and caption: a panel per setting, a stacked bar per stage, the range at the fullest stage."""
    named = [(row, row.prediction) for row in _named(plan) if row.prediction]
    unit, scale = memory_unit([found.range_bytes[1] for _, found in named])
    most = max(found.range_bytes[1] for _, found in named) / scale
    limits = _limits(plan, scale, most)
    top = max([most, *(float(str(row["at"])) for row in limits)]) * 1.06
    axis = alt.Y("low:Q", title=f"Peak memory of a stage ({unit})", scale=alt.Scale(domain=[0, top], nice=False))
    wide = min(look.WIDTH / len(named) - 24, 120 + 60 * len(named[0][1].stages))
    panels = []
    for number, (row, found) in enumerate(named):
        y = axis if number == 0 else axis.title(None)
        layers = [_bars(found, scale, wide, y), *_whisker(found, scale)]
        layers += _limit_rules(limits, "y", words=number == len(named) - 1)
        heading = alt.TitleParams(shortened(row.text), subtitle=_marks_of(plan, row), fontSize=12, fontWeight="normal")
        panels.append(alt.layer(*layers).properties(width=wide, height=_STAGES_HEIGHT, title=heading))
    caption = (
        "Each bar is the peak of a pipeline stage, by part. The line at the fullest stage is the range of its peak."
        + _off(plan, limits)
    )
    return "Memory by stage and part", alt.hconcat(*panels, spacing=18), caption


def _marks_of(plan: Plan, row: Row) -> str:
    """Say why the setting has a panel."""
    asked = row.text == plan.spec.recompute.text
    marks = (
        ("use this", row is plan.recommended),
        ("whole range fits", row is plan.safe),
        ("asked", asked),
        ("least memory", row is _smallest(plan)),
    )
    return ", ".join(words for words, holds in marks if holds) or " "


def _bars(found: Prediction, scale: float, wide: float, y: alt.Y) -> alt.Chart:
    rows: list[look.Row] = []
    for stage in found.stages:
        low = 0.0
        for part in _PARTS:
            size = getattr(stage, part) / scale
            text = format_bytes(getattr(stage, part))
            rows.append({"stage": stage.pp_rank, "part": part, "low": low, "high": low + size, "size": text})
            low += size
    legend = alt.Legend(orient="bottom", columns=len(_PARTS), values=list(_PARTS))
    bars: alt.Chart = (
        look.frame(rows)
        .mark_bar(size=min(44.0, 0.7 * wide / len(found.stages)))
        .encode(
            x=alt.X("stage:O", title="Pipeline stage", axis=alt.Axis(labelAngle=0)),
            y=y,
            y2="high:Q",
            color=look.kinds(alt.Color, "part", _PARTS, legend=legend),
            tooltip=["stage:O", "part:N", "size:N"],
        )
    )
    return bars


def _whisker(found: Prediction, scale: float) -> list[alt.Chart]:
    low, high = (end / scale for end in found.range_bytes)
    base = look.frame(
        [{"stage": found.worst.pp_rank, "low": low, "high": high, "text": f"{found.peak_bytes / scale:.1f}"}]
    )
    rule = base.mark_rule(color=look.BLACK, strokeWidth=1.6).encode(x="stage:O", y="low:Q", y2="high:Q")
    ends = [
        base.mark_tick(color=look.BLACK, thickness=1.6, size=9).encode(x="stage:O", y=f"{end}:Q")
        for end in ("low", "high")
    ]
    words = base.mark_text(dy=-7, fontSize=look.LABEL_SIZE).encode(x="stage:O", y="high:Q", text="text:N")
    return [rule, *ends, words]


def _limit_rules(limits: Sequence[look.Row], axis: str, *, words: bool) -> list[alt.Chart]:
    """Lines across the picture (``axis`` y) or up it (x), with what they are beside them."""
    if not limits:
        return []
    base, at = look.frame(limits), {axis: "at:Q"}
    dash = look.kinds(alt.StrokeDash, "kind", _DASHES, legend=None)
    layers = [base.mark_rule(color=look.GREY, strokeWidth=1.3).encode(**at, strokeDash=dash)]
    if words and axis == "y":
        texts = base.mark_text(align="right", baseline="bottom", dx=-4, dy=-2, color=look.GREY, fontSize=10)
        layers.append(texts.encode(**at, x=alt.value("width"), text="text:N"))
    elif words:
        texts = base.mark_text(align="right", baseline="bottom", angle=270, dx=-4, dy=-2, color=look.GREY, fontSize=10)
        layers.append(texts.encode(**at, y=alt.value(0), text="text:N"))
    return layers


@dataclass(frozen=True)
class _Scene:
    """Where settings stand: GiB or MiB across, percent over the step without recompute up.

    ``points`` are x and y by setting. ``exponent`` below 1 compresses the axis of time upwards.
    """

    points: dict[str, tuple[float, float]]
    left: float
    right: float
    bottom: float
    top: float
    exponent: float


def _scene(points: dict[str, tuple[float, float]], across: Sequence[float]) -> _Scene:
    """``across``: all that has to be in sight, in units of memory.

    The axis of time is bent for a few very slow settings.
    """
    costs = [y for _, y in points.values()]
    low, high = min(costs), max(costs)
    exponent = 0.5 if low >= -1 and median(costs) - low < (high - low) / 6 else 1.0
    span = (max(across) - min(across)) or 1.0
    below = 0.1 * (high - low) or 1.0
    return _Scene(points, min(across) - 0.04 * span, max(across) + 0.04 * span,
                  low - (0.04 * below if exponent < 1 else below), high + below, exponent)  # fmt: skip


def _plane(plan: Plan) -> tuple[str, "look.Chart", str]:
    """Title, chart and caption: a point per setting with the range of its peak, the Pareto set joined by a line."""
    rows = [(row, row.prediction) for row in plan.rows if row.prediction]
    unit, scale = memory_unit([found.peak_bytes for _, found in rows])
    ends = [end / scale for _, found in rows for end in found.range_bytes]
    limits = _limits(plan, scale, max(ends))
    against = plan.control or min((row for row, _ in rows), key=plan.seconds_per_token)
    assert against.prediction is not None  # as the rows of which it is one
    points = {
        row.text: (found.peak_bytes / scale, found.overhead_over(against.prediction) * 100) for row, found in rows
    }
    scene = _scene(points, [*ends, *(float(str(row["at"])) for row in limits)])
    beaten = dominated(tuple(row for row, _ in rows))
    time = against.prediction.time
    title = f"{'Step time' if time else 'FLOPs'} over {'no recompute' if plan.control else against.text} (%)"
    layers = [
        *_limit_rules(limits, "x", words=True),
        *_front([points[row.text] for row, _ in rows if row.text not in beaten]),
        _ranges(rows, scene, scale),
        _marks(plan, scene, beaten, f"Peak of the fullest stage ({unit})", title),
        _labels(plan, scene, beaten),
    ]
    chart = alt.layer(*layers).properties(width=look.WIDTH, height=_HEIGHT)
    caption = "Down and to the left is better. Horizontal lines are ranges of the peak. The steps join the Pareto set."
    if scene.exponent < 1:
        caption += " The axis of time is compressed upwards."
    if time:
        low, high = format_seconds(time.low_s), format_seconds(time.high_s)
        likely = format_seconds(time.likely_s)
        caption += f" A step with {against.text} takes {likely} ({low} to {high}); all settings share this uncertainty."
    return "Settings by memory and time", chart, caption + _off(plan, limits)


def _front(points: Sequence[tuple[float, float]]) -> list[alt.Chart]:
    """Steps through the Pareto set, from left to right and only downwards."""
    corners: list[look.Row] = []
    for x, y in sorted(points):
        if not corners or y < float(str(corners[-1]["y"])):
            corners.append({"x": x, "y": y})
    line = look.frame(corners).mark_line(color=look.BLUE, interpolate="step-after", strokeWidth=1.4, opacity=0.7)
    return [line.encode(x="x:Q", y="y:Q")]


def _ranges(rows: Sequence[tuple[Row, Prediction]], scene: _Scene, scale: float) -> alt.Chart:
    spans: list[look.Row] = [
        {"low": found.range_bytes[0] / scale, "high": found.range_bytes[1] / scale, "y": scene.points[row.text][1]}
        for row, found in rows
    ]
    lines: alt.Chart = (
        look.frame(spans).mark_rule(color=look.PALE, strokeWidth=1.2).encode(x="low:Q", x2="high:Q", y="y:Q")
    )
    return lines


def _labels(plan: Plan, scene: _Scene, beaten: frozenset[str]) -> alt.Chart:
    """Return the names of the Pareto set and of the settings that have a panel; tooltips have the others."""
    best = plan.recommended.text if plan.recommended else ""
    shown = [name for name in scene.points if name not in beaten]
    rows: list[look.Row] = [
        {"x": x, "y": y, "text": shortened(name) + (" (use this)" if name == best else "")}
        for name in dict.fromkeys([*(row.text for row in _named(plan)), *shown])
        for x, y in (scene.points[name],)
    ]
    words: alt.Chart = look.frame(rows).mark_text(align="left", dx=9, dy=-9, fontSize=look.LABEL_SIZE)
    return words.encode(x="x:Q", y="y:Q", text="text:N")


def _marks(plan: Plan, scene: _Scene, beaten: frozenset[str], x_title: str, y_title: str) -> alt.Chart:
    marks: list[look.Row] = []
    for row in plan.rows:
        if row.prediction is None:
            continue
        x, y = scene.points[row.text]
        cost = "-" if row.overhead is None else format_percent(row.overhead)
        low, high = (format_bytes(end) for end in row.prediction.range_bytes)
        marks.append({"x": x, "y": y, "state": _state(plan, row, beaten), "setting": row.text, "cost": cost,
                      "peak": format_bytes(row.prediction.peak_bytes), "range": f"{low} to {high}",
                      "verdict": row.verdict})  # fmt: skip
    marks.sort(key=lambda mark: -_STATES.index(str(mark["state"])))  # the last one drawn is on top
    present = [state for state in _STATES if any(mark["state"] == state for mark in marks)]
    legend = alt.Legend(orient="bottom", columns=len(_STATES), values=present)
    wide = alt.Scale(domain=[scene.left, scene.right], nice=False, zero=False)
    high_scale = alt.Scale(
        type="pow", exponent=scene.exponent, domain=[scene.bottom, scene.top], nice=False, zero=False
    )
    points: alt.Chart = (
        look.frame(marks)
        .mark_point(filled=True, size=90, opacity=1, stroke="white", strokeWidth=0.8)
        .encode(
            x=alt.X("x:Q", title=x_title, scale=wide),
            y=alt.Y("y:Q", title=y_title, scale=high_scale),
            color=look.kinds(alt.Color, "state", _COLOURS, legend=legend),
            shape=look.kinds(alt.Shape, "state", _SHAPES, legend=legend),
            tooltip=["setting:N", "state:N", "peak:N", "range:N", "cost:N", "verdict:N"],
        )
    )
    return points


def _state(plan: Plan, row: Row, beaten: frozenset[str]) -> str:
    if row is plan.recommended:
        return _STATES[0]
    if row is plan.control:
        return _STATES[1]
    return _STATES[3] if row.text in beaten else _STATES[2]
