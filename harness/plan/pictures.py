"""Draws a plan: memory by pipeline stage and part, and settings by memory and time. Imported only to draw."""

from functools import partial
from operator import lt
from pathlib import Path
from textwrap import wrap

import altair as alt

from harness.predict.advice import dominated
from harness.predict.prediction import Prediction
from harness.predict.search import Plan, Row
from harness.show.charts import drawing as look
from harness.show.charts import plane
from harness.show.charts.drawing import memory_unit, shortened
from harness.show.html import html
from harness.show.page import Page, Picture
from harness.show.request_text import request_rows
from harness.units import format_bytes, format_percent, format_seconds

_PARTS = {"weights": look.BLUE, "gradients": look.SKY, "optimizer": look.GREEN, "activations": look.ORANGE,
          "logits": look.PURPLE, "transient": look.VERMILION, "overhead": look.PALE}  # fmt: skip
_LOOKS = {
    "recommended": (look.VERMILION, "diamond"),
    "without recompute": (look.BLACK, "triangle-up"),
    "Pareto set": (look.BLUE, "circle"),
    "beaten by another": (look.SKY, "square"),
}
_RECOMMENDED, _CONTROL, _FRONT, _BEATEN = _LOOKS
_HEIGHT, _STAGES_HEIGHT = 400, 300
_MOST_PANELS = 3


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
    return min(_predicted(plan), key=lambda each: each[1].peak_bytes)[0]


def _predicted(plan: Plan) -> list[tuple[Row, Prediction]]:
    return [(row, row.prediction) for row in plan.rows if row.prediction]


def _limits(plan: Plan, scale: float, most: float) -> tuple[list[look.Row], str]:
    size, budget = plan.limits.capacity_bytes, plan.limits.budget_bytes
    if not size or not budget:
        return [], " The memory is not known."
    return plane.limits([(size, budget, plan.limits.free_text)], scale, most)


def _stages(plan: Plan) -> tuple[str, "look.Chart", str]:
    """Title, chart and caption: a panel per setting, a stacked bar per stage, the range at the fullest stage."""
    named = [(row, row.prediction) for row in _named(plan) if row.prediction]
    unit, scale = memory_unit([found.range_bytes[1] for _, found in named])
    limits, off = _limits(plan, scale, max(found.range_bytes[1] for _, found in named) / scale)
    wide = min(look.WIDTH / len(named) - 24, 120 + 60 * len(named[0][1].stages))
    panels = []
    for number, (row, found) in enumerate(named):
        y = alt.Y("low:Q", title=None if number else f"Peak memory of a stage ({unit})")
        layers = [_bars(found, scale, wide, y), *_whisker(found, scale)]
        layers += plane.limit_lines(limits, "y", words=number == len(named) - 1)
        heading = alt.TitleParams(shortened(row.text), subtitle=_marks_of(plan, row), fontSize=12, fontWeight="normal")
        panels.append(alt.layer(*layers).properties(width=wide, height=_STAGES_HEIGHT, title=heading))
    caption = (
        "Each bar is the peak of a pipeline stage, by part. The line at the fullest stage is the range of its peak."
    )
    return "Memory by stage and part", alt.hconcat(*panels, spacing=18).resolve_scale(y="shared"), caption + off


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


def _plane(plan: Plan) -> tuple[str, "look.Chart", str]:
    """Title, chart and caption: a point per setting with the range of its peak, the Pareto set joined by a line."""
    rows = _predicted(plan)
    unit, scale = memory_unit([found.peak_bytes for _, found in rows])
    against = plan.control or min((row for row, _ in rows), key=plan.seconds_per_token)
    assert against.prediction is not None  # as the rows of which it is one
    beaten, time = dominated(tuple(row for row, _ in rows)), against.prediction.time
    places = {
        row.text: (found.peak_bytes / scale, found.overhead_over(against.prediction) * 100) for row, found in rows
    }
    marks = [{**_at(*places[row.text], found, scale), **_mark(plan, row, found, beaten)} for row, found in rows]
    limits, off = _limits(plan, scale, max(found.range_bytes[1] for _, found in rows) / scale)
    title = f"{'Step time' if time else 'FLOPs'} over {'no recompute' if plan.control else against.text} (%)"
    ranges = look.frame(marks).mark_rule(color=look.PALE, strokeWidth=1.2)
    layers = [
        *plane.limit_lines(limits, "x"),
        plane.front((place for name, place in places.items() if name not in beaten), lt),
        ranges.encode(x="low:Q", x2="high:Q", y="y:Q"),
        *plane.points(marks, _LOOKS, (f"Peak of the fullest stage ({unit})", title), _TOOLTIP),
    ]
    chart = alt.layer(*layers).properties(width=look.WIDTH, height=_HEIGHT)
    caption = "Down and to the left is better. Horizontal lines are ranges of the peak. The steps join the Pareto set."
    if time:
        low, high, likely = map(format_seconds, (*time.range_s, time.likely_s))
        takes = f"takes {likely} ({low} to {high}); all settings share this uncertainty."
        caption += f" A step with {against.text} {takes}"
    return "Settings by memory and time", chart, caption + off


_TOOLTIP = ("setting:N", "state:N", "peak:N", "range:N", "cost:N", "verdict:N")


def _at(x: float, y: float, found: Prediction, scale: float) -> look.Row:
    low, high = found.range_bytes
    return {"x": x, "y": y, "low": low / scale, "high": high / scale}


def _mark(plan: Plan, row: Row, found: Prediction, beaten: frozenset[str]) -> look.Row:
    """Return the state and texts of a point. The Pareto set and the settings with a panel have their names beside."""
    state = _BEATEN if row.text in beaten else _FRONT
    state = _RECOMMENDED if row is plan.recommended else _CONTROL if row is plan.control else state
    named = row.text not in beaten or row.text in [other.text for other in _named(plan)]
    return {
        "state": state,
        "text": shortened(row.text) + " (use this)" * (row is plan.recommended) if named else None,
        "setting": row.text,
        "cost": "-" if row.overhead is None else format_percent(row.overhead),
        "peak": format_bytes(found.peak_bytes),
        "range": " to ".join(map(format_bytes, found.range_bytes)),
        "verdict": row.verdict,
    }
