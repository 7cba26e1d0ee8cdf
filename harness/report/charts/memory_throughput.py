"""Memory against throughput: the Pareto front, the memory there is, the control, and what ran out of memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import altair as alt

from harness.analysis.sweep_values import CellVerdict, SweepVerdict
from harness.report.charts import look
from harness.report.charts.picture import Picture
from harness.report.charts.placing import Box, Spot, place, text_width
from harness.units import GIB, format_bytes

_HEIGHT = 440
_STATES = ("control", "Pareto set", "beaten by another", "no margin or in doubt", "out of memory (at the edge)")
_COLOURS = (look.BLACK, look.BLUE, look.SKY, look.ORANGE, look.VERMILION)
_SHAPES = ("diamond", "circle", "square", "triangle-up", "cross")


@dataclass(frozen=True)
class _Frame:
    """Ranges of both axes, chosen so that every label's place is known before anything is drawn."""

    left: float
    right: float
    bottom: float
    top: float

    def pixels(self, x: float, y: float) -> tuple[float, float]:
        return (
            (x - self.left) / (self.right - self.left) * look.WIDTH,
            (self.top - y) / (self.top - self.bottom) * _HEIGHT,
        )

    def values(self, x: float, y: float) -> tuple[float, float]:
        return (
            self.left + x / look.WIDTH * (self.right - self.left),
            self.top - y / _HEIGHT * (self.top - self.bottom),
        )


def memory_throughput(verdict: SweepVerdict) -> Picture:
    """Peak allocated bytes of the worst rank against throughput per GPU; cells that ran out of memory at the right edge."""
    title = "Memory against throughput"
    ran = [cell for cell in verdict.cells if _point(cell)]
    if not ran:
        return Picture("memory_throughput", title, "", None, "No cell has both a peak and a throughput.")
    unit, scale = _unit(verdict, ran)
    frame = _frame(verdict, ran, scale)
    oom = [cell for cell in verdict.cells if cell.status == "oom"]
    marks = _marks(verdict, ran, oom, frame, scale)
    present = [state for state in _STATES if any(row["state"] == state for row in marks)]
    axis_x, axis_y = f"Peak allocated at the worst rank ({unit})", "Throughput (TFLOP/s/GPU)"
    layers = [
        *_limit_layers(verdict, frame, scale),
        _front(verdict, ran, frame, scale),
        *_label_layers(verdict, ran, oom, frame, scale),
        alt.Chart(look.data(marks))
        .mark_point(filled=True, size=110, opacity=1, stroke="white", strokeWidth=0.8)
        .encode(
            x=alt.X("x:Q", title=axis_x, scale=alt.Scale(domain=[frame.left, frame.right], nice=False, zero=False)),
            y=alt.Y("y:Q", title=axis_y, scale=alt.Scale(domain=[frame.bottom, frame.top], nice=False, zero=False)),
            color=alt.Color("state:N", title=None, scale=alt.Scale(domain=_STATES, range=_COLOURS), legend=alt.Legend(orient="bottom", columns=5, values=present)),
            shape=alt.Shape("state:N", title=None, scale=alt.Scale(domain=_STATES, range=_SHAPES), legend=alt.Legend(orient="bottom", columns=5, values=present)),
            tooltip=["cell:N", "state:N", "memory:N", alt.Tooltip("y:Q", title="TFLOP/s/GPU", format=".5g")],
        ),
    ]  # fmt: skip
    chart = alt.layer(*layers).properties(width=look.WIDTH, height=_HEIGHT)
    caption = (
        "Up and to the left is better; no cell beats one of the Pareto set (on the line) in both. A label that found no "
        "room is the cell's number in the table."
    )
    return Picture("memory_throughput", title, caption, look.specification(chart, title, verdict.title))


def _point(cell: CellVerdict) -> tuple[float, float] | None:
    """Bytes and TFLOP/s/GPU."""
    if cell.status != "ok" or cell.metrics is None or cell.peak_bytes is None or cell.metrics.tflops_per_gpu is None:
        return None
    return float(cell.peak_bytes), cell.metrics.tflops_per_gpu.median


def _unit(verdict: SweepVerdict, ran: Sequence[CellVerdict]) -> tuple[str, float]:
    largest = max([*_limits(verdict), *(cell.peak_bytes or 0 for cell in ran)])
    return ("GiB", GIB) if largest >= GIB else ("MiB", GIB / 1024)


def _limits(verdict: SweepVerdict) -> list[int]:
    """Memory per rank, from the least on: of all cells the same unless the limit is varied."""
    return sorted(size for size in verdict.capacities if size)


def _frame(verdict: SweepVerdict, ran: Sequence[CellVerdict], scale: float) -> _Frame:
    points = [point for cell in ran if (point := _point(cell))]
    xs, ys = [x / scale for x, _ in points], [y for _, y in points]
    least, most = min(xs), max(xs)
    limit = max(_limits(verdict), default=0) / scale
    # A limit far beyond every point would squeeze them into a corner: it is then said in words at the edge.
    if limit and limit - most < 2 * max(most - least, most * 0.1):
        most = max(most, limit)
    span_x, span_y = (most - least) or most * 0.1, (max(ys) - min(ys)) or max(ys) * 0.1
    return _Frame(least - 0.12 * span_x, most + 0.14 * span_x, min(ys) - 0.12 * span_y, max(ys) + 0.15 * span_y)


def _marks(
    verdict: SweepVerdict, ran: Sequence[CellVerdict], oom: Sequence[CellVerdict], frame: _Frame, scale: float
) -> list[look.Row]:
    rows: list[look.Row] = []
    for cell in ran:
        point = _point(cell)
        assert point is not None
        rows.append(_mark(cell, (point[0] / scale, point[1]), _state(cell, verdict), format_bytes(point[0])))
    for number, cell in enumerate(oom):
        rows.append(_mark(cell, _edge(frame, number, len(oom)), _STATES[4], "did not fit"))
    return rows


def _mark(cell: CellVerdict, at: tuple[float, float], state: str, memory: str) -> look.Row:
    return {"x": at[0], "y": at[1], "state": state, "cell": cell.name, "memory": memory}


def _state(cell: CellVerdict, verdict: SweepVerdict) -> str:
    if cell.is_control:
        return _STATES[0]
    if cell.doubts or cell.fits is False:
        return _STATES[3]
    return _STATES[1] if cell.name in verdict.pareto else _STATES[2]


def _edge(frame: _Frame, number: int, of: int) -> tuple[float, float]:
    """Where one of the cells that ran out of memory stands: down the right edge, for it has no throughput."""
    return frame.values(look.WIDTH - 12, 40 + min(20.0, (_HEIGHT - 70) / of) * number)


def _corners(
    verdict: SweepVerdict, ran: Sequence[CellVerdict], frame: _Frame, scale: float
) -> list[tuple[float, float]]:
    """Points of the line, from left to right."""
    points = sorted(
        (point[0] / scale, point[1]) for cell in ran if cell.name in verdict.pareto and (point := _point(cell))
    )
    return [(points[0][0], frame.bottom), *points, (frame.right, points[-1][1])] if points else []


def _front(verdict: SweepVerdict, ran: Sequence[CellVerdict], frame: _Frame, scale: float) -> alt.Chart:
    """Steps through the Pareto set: between two of its cells the smaller one's throughput is what can be had."""
    rows: list[look.Row] = [{"x": x, "y": y} for x, y in _corners(verdict, ran, frame, scale)]
    line: alt.Chart = (
        alt.Chart(look.data(rows))
        .mark_line(color=look.BLUE, interpolate="step-after", strokeWidth=1.4, opacity=0.7, clip=True)
        .encode(x="x:Q", y="y:Q")
    )
    return line


def _limit_layers(verdict: SweepVerdict, frame: _Frame, scale: float) -> list[alt.Chart]:
    limits = _limits(verdict)
    if not limits:
        return []
    lines = [
        line
        for limit in limits
        for line in (
            (limit / scale, f"memory {format_bytes(limit)}", [1, 0]),
            (limit / scale * (1 - verdict.margin), f"less {verdict.margin * 100:g} %", [5, 4]),
        )
    ]
    layers = []
    for place_x, text, dash in lines:
        if frame.left < place_x < frame.right:
            row: look.Row = {"x": place_x, "y": frame.bottom, "text": text}
            base = alt.Chart(look.data([row]))
            layers.append(base.mark_rule(color=look.GREY, strokeDash=dash, strokeWidth=1.3).encode(x="x:Q"))
            layers.append(
                base.mark_text(angle=270, align="left", dx=6, dy=-6, color=look.GREY, fontSize=10).encode(x="x:Q", y="y:Q", text="text:N")
            )  # fmt: skip
    if not layers:
        row = {
            "x": frame.right,
            "y": frame.bottom,
            "text": f"memory {format_bytes(limits[0])}, beyond this edge →",
        }
        layers.append(
            alt.Chart(look.data([row])).mark_text(align="right", dx=-6, dy=-8, color=look.GREY, fontSize=10).encode(x="x:Q", y="y:Q", text="text:N")
        )  # fmt: skip
    return layers


def _label_layers(
    verdict: SweepVerdict, ran: Sequence[CellVerdict], oom: Sequence[CellVerdict], frame: _Frame, scale: float
) -> list[alt.Chart]:
    """Labels in order of interest, the recommended cell first."""
    best = verdict.recommendation.cell
    rank = {name: place_of for place_of, name in enumerate(verdict.pareto)}
    ordered = sorted(ran, key=lambda c: (c.name != best, not c.is_control, rank.get(c.name, len(rank)), c.index))
    called, spots = look.labels(verdict), []
    for cell in ordered:
        point = _point(cell)
        assert point is not None
        use = " (use this)" if cell.name == best else ""
        x, y = frame.pixels(point[0] / scale, point[1])
        spots.append(Spot(x, y, called[cell.name] + use, f"{cell.index}{use}"))
    edge = [frame.pixels(*_edge(frame, number, len(oom))) for number in range(len(oom))]
    edge_boxes = [_edge_box(x, y, called[cell.name]) for (x, y), cell in zip(edge, oom, strict=True)]
    placed = place(
        spots,
        look.WIDTH,
        _HEIGHT,
        [*edge_boxes, *_line_boxes(verdict, frame, scale), *_front_boxes(verdict, ran, frame, scale)],
    )
    rows: list[look.Row] = []
    for label in placed:
        x, y = frame.values(label.x, label.y)
        to_x, to_y = frame.values(label.spot.x, label.spot.y)
        rows.append(
            {"x": x, "y": y, "text": label.text, "to_x": to_x, "to_y": to_y, "far": label.is_far, "left": label.is_left}
        )
    edge_rows: list[look.Row] = []
    for (x, y), cell in zip(edge, oom, strict=True):
        at_x, at_y = frame.values(x - 10, y)
        edge_rows.append({"x": at_x, "y": at_y, "text": called[cell.name]})
    lines = alt.Chart(look.data([row for row in rows if row["far"]])).mark_rule(color=look.PALE, strokeWidth=0.8)
    return [
        lines.encode(x="x:Q", y="y:Q", x2="to_x:Q", y2="to_y:Q"),
        _texts([row for row in rows if not row["left"]], "left", look.BLACK),
        _texts([row for row in rows if row["left"]], "right", look.BLACK),
        _texts(edge_rows, "right", look.VERMILION),
    ]  # fmt: skip


def _texts(rows: Sequence[look.Row], align: Literal["left", "right"], colour: str) -> alt.Chart:
    """Labels that begin or end where their rows say, one layer for each side."""
    chart: alt.Chart = (
        alt.Chart(look.data(rows))
        .mark_text(align=align, baseline="middle", fontSize=look.LABEL_SIZE, color=colour)
        .encode(x="x:Q", y="y:Q", text="text:N")
    )
    return chart


def _edge_box(x: float, y: float, text: str) -> Box:
    return (x - 12 - text_width(text), y - 8, x + 12, y + 8)


def _front_boxes(verdict: SweepVerdict, ran: Sequence[CellVerdict], frame: _Frame, scale: float) -> list[Box]:
    """The line itself, so that no label is crossed out by it."""
    corners = [frame.pixels(x, y) for x, y in _corners(verdict, ran, frame, scale)]
    boxes = []
    for (x, y), (next_x, next_y) in pairwise(corners):
        boxes.append((x, y - 1, next_x, y + 1))
        boxes.append((next_x - 1, min(y, next_y), next_x + 1, max(y, next_y)))
    return boxes


def _line_boxes(verdict: SweepVerdict, frame: _Frame, scale: float) -> list[Box]:
    """Where the limit's own text stands."""
    at = [limit / scale * share for limit in _limits(verdict) for share in (1, 1 - verdict.margin)]
    xs = [frame.pixels(x, frame.bottom)[0] for x in at]
    return [(x - 14, _HEIGHT - 130, x + 2, float(_HEIGHT)) for x in xs]
