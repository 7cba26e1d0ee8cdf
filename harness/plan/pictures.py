"""Draws a plan: memory by pipeline stage and part, and settings by memory and time. Imported only to draw."""

from collections.abc import Iterable
from functools import partial
from operator import lt
from pathlib import Path

import altair as alt

from harness.predict.advice import dominated
from harness.predict.prediction import Prediction
from harness.predict.search import Plan, Row
from harness.predict.step_history import Moment, StepHistory
from harness.show.charts import drawing as look
from harness.show.charts import plane
from harness.show.charts.drawing import memory_unit, shortened
from harness.show.html import html
from harness.show.page import Page, Picture
from harness.show.request_text import request_rows
from harness.units import format_bytes, format_percent, format_seconds

_PARTS = {"weights": look.BLUE, "gradients": look.SKY, "optimizer": look.GREEN, "activations": look.ORANGE,
          "logits": look.PURPLE, "transient": look.VERMILION, "overhead": look.PALE}  # fmt: skip
_GROUPS = {"weights": look.BLUE, "gradients": look.SKY, "optimizer": look.GREEN, "overhead": look.PALE,
           "embedding": "#8C6D31", "layers": look.ORANGE, "output layer": look.PURPLE, "layers, recompute": "#F0E442",
           "layers, backward": look.VERMILION, "transient": look.GREY}  # fmt: skip
_LOOKS = {
    "recommended": (look.VERMILION, "diamond"),
    "without recompute": (look.BLACK, "triangle-up"),
    "Pareto set": (look.BLUE, "circle"),
    "beaten by another": (look.SKY, "square"),
}
_RECOMMENDED, _CONTROL, _FRONT, _BEATEN = _LOOKS
_HEIGHT, _STAGES_HEIGHT = 400, 300
_MOST_PANELS = 3
_MOST_MOMENTS = 400
_TOOLTIP = ("setting:N", "state:N", "peak:N", "range:N", "cost:N", "verdict:N")


def write_png(path: Path, plan: Plan, layout: str) -> None:
    """Both pictures in one file. ``layout`` is its name where there are several.

    BadRequestError where it cannot be written.
    """
    charts = [chart.properties(title=title) for title, chart, _ in (_stages(plan), _plane(plan))]
    both = alt.vconcat(*charts, spacing=30).resolve_scale(color="independent", shape="independent")
    drawn = look.picture("plan", "Predicted memory and time", _about(plan, layout), both, "")
    look.write_chart("--png", path, drawn, lambda: "")


def plan_pictures(plan: Plan) -> list[Picture]:
    """Memory by stage and part, and settings by memory and time, each a picture of its own."""
    parts = {"memory_stages": _stages(plan), "memory_time": _plane(plan)}
    return [look.picture(name, title, "", chart, caption) for name, (title, chart, caption) in parts.items()]


def write_html(path: Path, plan: Plan, layout: str, page: Page, step: tuple[Row, StepHistory] | None = None) -> None:
    """Write the page with the pictures before its blocks. ``step``: a setting and its step, where that is known.

    BadRequestError as :func:`write_png`.
    """
    drawn = [*plan_pictures(plan), *([_step(plan, *step)] if step else [])]
    whole = Page((*drawn, *page.blocks), title="Predicted memory and time", about="; ".join(_about(plan, layout)))
    look.write_chart("--html", path, drawn[0], partial(html, whole))


def _step(plan: Plan, row: Row, step: StepHistory) -> Picture:
    """Memory of the fullest rank over one step, stacked by part and module, with peak, reserved and the device."""
    assert row.prediction
    bands, totals = _bands(step)
    reserved = max(float(total["reserved"] or 0) for total in totals)
    (unit, scale), off, lines = memory_unit([reserved]), " The memory is not known.", list[look.Row]()
    if size := plan.limits.capacity_bytes:
        usable = size - plan.limits.outside_bytes
        lines, off = plane.limits([(size, usable, "what torch's allocator may use")], scale, reserved / scale)
    for each in (*bands, *totals):
        each |= {name: float(each[name] or 0) / scale for name in ("low", "high", "reserved") if name in each}
    peak = max(totals, key=lambda total: float(total["high"] or 0))
    at_peak = look.frame([peak | {"text": f"peak {format_bytes(float(peak['high'] or 0) * scale)}"}])
    x = alt.X("at:Q", title="Requests for memory, in order", scale=alt.Scale(nice=False))
    legend = look.legend(bands, "part", _GROUPS, orient="bottom", columns=6)
    layers = [
        look.frame(bands).mark_area(interpolate="step-after").encode(
            x=x, y=alt.Y("low:Q", title=f"Memory ({unit})"), y2="high:Q",
            color=look.kinds(alt.Color, "part", _GROUPS, legend=legend),
        ),
        look.frame(totals).mark_line(color=look.BLACK, strokeDash=[4, 3], interpolate="step-after").encode(
            x=x, y="reserved:Q"
        ),
        at_peak.mark_point(filled=True, color=look.BLACK, size=50).encode(x=x, y="high:Q"),
        at_peak.mark_text(align="left", dx=8, dy=14, fontSize=look.LABEL_SIZE).encode(x=x, y="high:Q", text="text:N"),
        *plane.limit_lines(lines, "y"),
    ]  # fmt: skip
    chart = alt.layer(*layers).properties(width=look.WIDTH, height=_STAGES_HEIGHT)
    caption = (
        f"Stage {row.prediction.worst.pp_rank} with {shortened(row.text)}, the second step. Dashed: reserved by "
        f"torch's allocator, {format_bytes(reserved)}. The axis counts requests; it is not time. Micro-batches that "
        "only repeat earlier ones are left out."
    )
    return look.picture("memory_step", "Memory over one step", "", chart, caption + off)


def _bands(step: StepHistory) -> tuple[list[look.Row], list[look.Row]]:
    """Return bands and totals, in bytes, of the fullest moment of each of at most so many spans of the last step."""
    span, fullest = -(-(len(step.entries) - step.begin) // _MOST_MOMENTS), dict[int, tuple[int, Moment]]()
    for at, moment in enumerate(step.moments(), start=-step.begin):
        if at >= 0 and (at // span not in fullest or moment.allocated > fullest[at // span][1].allocated):
            fullest[at // span] = at, moment._replace(groups=dict(moment.groups))
    known = set[str]().union(*(moment.groups for _, moment in fullest.values()))
    bands, totals = list[look.Row](), list[look.Row]()
    for at, (reserved, allocated, groups) in fullest.values():
        low = 0
        for group in (group for group in _GROUPS if group in known):
            high = low + groups.get(group, 0)
            bands.append({"at": at, "part": group, "low": low, "high": high})
            low = high
        totals.append({"at": at, "high": allocated, "reserved": reserved})
    return bands, totals


def _about(plan: Plan, layout: str) -> list[str]:
    rows = dict(request_rows(plan.spec))
    return [rows["Recipe"], f"{layout}: {rows['Parallelism']}" if layout else rows["Parallelism"]]


def _predicted(plan: Plan) -> list[tuple[Row, Prediction]]:
    return [(row, row.prediction) for row in plan.rows if row.prediction]


def _named(plan: Plan) -> list[tuple[Row, Prediction]]:
    """Settings to show beside each other, at most three: recommended, asked for, none, least memory."""
    known = {row.text: (row, found) for row, found in _predicted(plan)}
    smallest = min(known, key=lambda text: known[text][1].peak_bytes)
    order = (plan.recommended and plan.recommended.text, plan.spec.recompute.text, "none", smallest)
    return [known[text] for text in dict.fromkeys(order) if text in known][:_MOST_PANELS]


def _limits(plan: Plan, scale: float, peaks: Iterable[Prediction]) -> tuple[list[look.Row], str]:
    size, budget = plan.limits.capacity_bytes, plan.limits.budget_bytes
    if not size or not budget:
        return [], " The memory is not known."
    most = max(found.range_bytes[1] for found in peaks) / scale
    return plane.limits([(size, budget, plan.limits.free_text)], scale, most)


def _stages(plan: Plan) -> tuple[str, "look.Chart", str]:
    """Title, chart and caption: a panel per setting, a stacked bar per stage, the range at the fullest stage."""
    named = _named(plan)
    unit, scale = memory_unit([found.range_bytes[1] for _, found in named])
    limits, off = _limits(plan, scale, [found for _, found in named])
    wide = min(look.WIDTH / len(named) - 24, 120 + 60 * len(named[0][1].stages))
    panels = []
    for number, (row, found) in enumerate(named):
        y = alt.Y("low:Q", title=None if number else f"Peak memory of a stage ({unit})")
        layers = [_bars(found, scale, wide, y), *_range(found, scale, y)]
        layers += plane.limit_lines(limits, "y", words=number == len(named) - 1)
        title = shortened(row.text) + " (use this)" * (row is plan.recommended)
        panels.append(alt.layer(*layers).properties(width=wide, height=_STAGES_HEIGHT, title=title))
    caption = (
        "Each bar is the peak of a pipeline stage, by part. The line at the fullest stage is the range of its peak."
    )
    return "Memory by stage and part", alt.hconcat(*panels, spacing=18).resolve_scale(y="shared"), caption + off


def _bars(found: Prediction, scale: float, wide: float, y: alt.Y) -> alt.Chart:
    rows: list[look.Row] = []
    for stage in found.stages:
        low = 0.0
        for part in _PARTS:
            size = getattr(stage, part)
            high = low + size / scale
            rows.append({"stage": stage.pp_rank, "part": part, "low": low, "high": high, "size": format_bytes(size)})
            low = high
    legend = alt.Legend(orient="bottom", columns=len(_PARTS), values=list(_PARTS))
    marks = look.frame(rows).mark_bar(size=min(44.0, 0.7 * wide / len(found.stages)))
    bars: alt.Chart = marks.encode(
        x=alt.X("stage:O", title="Pipeline stage", axis=alt.Axis(labelAngle=0)),
        y=y,
        y2="high:Q",
        color=look.kinds(alt.Color, "part", _PARTS, legend=legend),
        tooltip=["stage:O", "part:N", "size:N"],
    )
    return bars


def _range(found: Prediction, scale: float, y: alt.Y) -> list[alt.Chart]:
    low, high = (end / scale for end in found.range_bytes)
    row: look.Row = {"stage": found.worst.pp_rank, "low": low, "high": high, "text": f"{found.peak_bytes / scale:.1f}"}
    base = look.frame([row])
    line = base.mark_errorbar(ticks={"size": 9}, color=look.BLACK).encode(x="stage:O", y=y, y2="high:Q")
    words = base.mark_text(dy=-7, fontSize=look.LABEL_SIZE).encode(x="stage:O", y="high:Q", text="text:N")
    return [line, words]


def _plane(plan: Plan) -> tuple[str, "look.Chart", str]:
    """Title, chart and caption: a point per setting with the range of its peak, the Pareto set joined by a line."""
    rows = _predicted(plan)
    unit, scale = memory_unit([found.peak_bytes for _, found in rows])
    against = plan.control or min((row for row, _ in rows), key=plan.seconds_per_token)
    assert against.prediction is not None  # as the rows of which it is one
    beaten, time = dominated(tuple(row for row, _ in rows)), against.prediction.time
    marks: list[look.Row] = []
    for row, found in rows:
        y, (low, high) = found.overhead_over(against.prediction) * 100, found.range_bytes
        place: look.Row = {"x": found.peak_bytes / scale, "y": y, "low": low / scale, "high": high / scale}
        marks.append(place | _mark(plan, row, found, beaten))
    limits, off = _limits(plan, scale, [found for _, found in rows])
    title = f"{'Step time' if time else 'FLOPs'} over {'no recompute' if plan.control else against.text} (%)"
    ranges = look.frame(marks).mark_rule(color=look.PALE, strokeWidth=1.2)
    layers = [
        *plane.limit_lines(limits, "x"),
        plane.front(((float(m["x"] or 0), float(m["y"] or 0)) for m in marks if m["setting"] not in beaten), lt),
        ranges.encode(x="low:Q", x2="high:Q", y="y:Q"),
        *plane.points(marks, _LOOKS, (f"Peak of the fullest stage ({unit})", title), _TOOLTIP),
    ]
    chart = alt.layer(*layers).properties(width=look.WIDTH, height=_HEIGHT)
    caption = "Down and to the left is better. Horizontal lines are ranges of the peak. The steps join the Pareto set."
    if time:
        least, most, likely = map(format_seconds, (*time.range_s, time.likely_s))
        takes = f"takes {likely} ({least} to {most}); all settings share this uncertainty."
        caption += f" A step with {against.text} {takes}"
    return "Settings by memory and time", chart, caption + off


def _mark(plan: Plan, row: Row, found: Prediction, beaten: frozenset[str]) -> look.Row:
    """Return the state and texts of a point. Beaten settings have no name beside them, but a tooltip."""
    state = _BEATEN if row.text in beaten else _FRONT
    state = _RECOMMENDED if row is plan.recommended else _CONTROL if row is plan.control else state
    return {
        "state": state,
        "text": None if state == _BEATEN else shortened(row.text) + " (use this)" * (state == _RECOMMENDED),
        "setting": row.text,
        "cost": "-" if row.overhead is None else format_percent(row.overhead),
        "peak": format_bytes(found.peak_bytes),
        "range": " to ".join(map(format_bytes, found.range_bytes)),
        "verdict": row.verdict,
    }
