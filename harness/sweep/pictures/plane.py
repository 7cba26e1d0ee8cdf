"""Draws memory against throughput: cells and their labels placed on the plane, the chosen cell marked."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import altair as alt

from harness.judge.metrics import BY_NAME
from harness.show.charts import drawing as look
from harness.show.charts.drawing import Box, Placed, Spot, memory_unit, place, shortened, text_width
from harness.show.figures import figure
from harness.show.page import Picture
from harness.sweep.values import CellVerdict, SweepVerdict
from harness.units import format_bytes

WIDTH, HEIGHT = 760, 440
_MOST_AT_EDGE = 27  # with a line below that counts the others, names keep 13 pixels each


@dataclass(frozen=True)
class Scene:
    """``ran``: cells with both figures; ``oom``: those that ran out of memory. The axes' ranges are in ``unit`` and tokens/s."""

    verdict: SweepVerdict
    ran: tuple[CellVerdict, ...]
    oom: tuple[CellVerdict, ...]
    unit: str
    scale: float
    left: float
    right: float
    bottom: float
    top: float

    def point(self, cell: CellVerdict) -> tuple[float, float]:
        """Return the place of a cell that ran, in the units of the axes."""
        return _figures(cell, self.scale)

    def edge(self, number: int) -> tuple[float, float]:
        """Return the place of a cell that ran out of memory: on the right edge, as it has no throughput."""
        num_lines = len(self.at_edge) + bool(self.num_beyond)
        return self.values(WIDTH - 12, 40 + min(20.0, (HEIGHT - 70) / num_lines) * number)

    @property
    def at_edge(self) -> tuple[CellVerdict, ...]:
        """Return the cells that ran out of memory and have room at the edge."""
        return self.oom[:_MOST_AT_EDGE]

    @property
    def num_beyond(self) -> int:
        """Return the number of further cells that ran out of memory, written below the last."""
        return len(self.oom) - len(self.at_edge)

    def corners(self) -> list[tuple[float, float]]:
        """Return the points of the line through the Pareto set, from left to right and only upwards.

        A cell in the set whose mean is below the line is no corner.
        """
        points: list[tuple[float, float]] = []
        for x, y in sorted(self.point(cell) for cell in self.ran if cell.name in self.verdict.pareto):
            if not points or y > points[-1][1]:
                points.append((x, y))
        return [(points[0][0], self.bottom), *points, (self.right, points[-1][1])] if points else []

    def spread(self, cell: CellVerdict) -> tuple[float, float]:
        """Return the throughput of the slowest and of the fastest repeat; the same twice for a single run."""
        assert cell.cost_s is not None
        _, rate = self.point(cell)
        return rate * cell.cost_s / max(cell.costs_s), rate * cell.cost_s / min(cell.costs_s)

    def limits(self) -> list[float]:
        """Return the memory per rank in ascending order: one value unless the limit is varied."""
        return [size / self.scale for size in _limits(self.verdict)]

    def pixels(self, x: float, y: float) -> tuple[float, float]:
        """Return the pixels from the left and from the top."""
        return (x - self.left) / (self.right - self.left) * WIDTH, (self.top - y) / (self.top - self.bottom) * HEIGHT

    def values(self, x: float, y: float) -> tuple[float, float]:
        """Return the values of :meth:`pixels` again: its inverse."""
        return self.left + x / WIDTH * (self.right - self.left), self.top - y / HEIGHT * (self.top - self.bottom)


def scene_of(verdict: SweepVerdict) -> Scene | None:
    """Return the scene; None if no cell has both a peak and a throughput.

    Throughput is that of tokens at the step time that the Pareto set is made of, so that its line only rises, whatever
    the cells' sequence lengths, and no cell stands above it.
    """
    ran = tuple(
        cell
        for cell in verdict.cells
        if cell.status == "ok" and cell.peak_bytes is not None and _tokens_per_s(cell) is not None
    )
    if not ran:
        return None
    unit, scale = memory_unit([*_limits(verdict), *(cell.peak_bytes or 0 for cell in ran)])
    xs, means = zip(*(_figures(cell, scale) for cell in ran), strict=True)
    ys = [
        rate * (cell.cost_s or 0.0) / cost for cell, rate in zip(ran, means, strict=True) for cost in cell.costs_s
    ] or means
    least, most, limit = min(xs), max(xs), max(_limits(verdict), default=0) / scale
    # A limit far beyond every point would squeeze them into a corner: then a text at the edge gives it.
    if limit and limit - most < 2 * max(most - least, most * 0.1):
        most = max(most, limit)
    span_x, span_y = (most - least) or most * 0.1, (max(ys) - min(ys)) or max(ys) * 0.1
    return Scene(
        verdict=verdict,
        ran=ran,
        oom=tuple(cell for cell in verdict.cells if cell.status == "oom"),
        unit=unit,
        scale=scale,
        left=least - 0.12 * span_x,
        right=most + 0.14 * span_x,
        bottom=min(ys) - 0.12 * span_y,
        top=max(ys) + 0.15 * span_y,
    )


def _figures(cell: CellVerdict, scale: float) -> tuple[float, float]:
    rate = _tokens_per_s(cell)
    assert cell.peak_bytes is not None and rate is not None
    return cell.peak_bytes / scale, rate


def _tokens_per_s(cell: CellVerdict) -> float | None:
    return cell.speed.tokens_per_s_per_gpu if cell.speed else None


def _limits(verdict: SweepVerdict) -> list[int]:
    return sorted(size for size in verdict.capacities if size)


def labels(verdict: SweepVerdict) -> dict[str, str]:
    """Return each cell's name in pictures: shortened, with its number if two would look alike."""
    short = {cell.name: shortened(cell.name) for cell in verdict.cells}
    seen = list(short.values())
    return {
        cell.name: ("" if seen.count(short[cell.name]) == 1 else f"#{cell.index} ")
        + short[cell.name]
        + (" (control)" if cell.is_control else "")
        for cell in verdict.cells
    }


def label_layers(scene: Scene) -> list[alt.Chart]:
    """Return a layer for the lines to far labels, one for either side of a point, one for cells at the edge."""
    called = labels(scene.verdict)
    names = [called[cell.name] for cell in scene.at_edge]
    if scene.num_beyond:
        names.append(f"and {scene.num_beyond} more")
    edge = [scene.pixels(*scene.edge(number)) for number in range(len(names))]
    at_edge = [(x - 12 - text_width(name), y - 8, x + 12, y + 8) for (x, y), name in zip(edge, names, strict=True)]
    placed = place(_spots(scene, called), WIDTH, HEIGHT, [*at_edge, *_limit_boxes(scene), *_front_boxes(scene)])
    edge_rows = [_at(scene, (x - 10, y), name) for (x, y), name in zip(edge, names, strict=True)]
    leads = look.frame([_lead(scene, label) for label in placed if label.is_far and label.text])
    return [
        leads.mark_rule(color=look.PALE, strokeWidth=0.8).encode(x="x:Q", y="y:Q", x2="to_x:Q", y2="to_y:Q"),
        _texts([_at(scene, (label.x, label.y), label.text) for label in placed if not label.is_left], "left"),
        _texts([_at(scene, (label.x, label.y), label.text) for label in placed if label.is_left], "right"),
        _texts(edge_rows, "right", look.VERMILION),
    ]


def _spots(scene: Scene, called: dict[str, str]) -> list[Spot]:
    """Return the spots in order of interest, the recommended cell first: the first get the best places."""
    verdict = scene.verdict
    best, rank = verdict.recommendation.cell, {name: number for number, name in enumerate(verdict.pareto)}
    ordered = sorted(scene.ran, key=lambda c: (c.name != best, not c.is_control, rank.get(c.name, len(rank)), c.index))
    spots = []
    for cell in ordered:
        use = " (use this)" if cell.name == best else ""
        x, y = scene.pixels(*scene.point(cell))
        spots.append(Spot(x, y, called[cell.name] + use, f"{cell.index}{use}"))
    return spots


def _at(scene: Scene, pixels: tuple[float, float], text: str) -> look.Row:
    x, y = scene.values(*pixels)
    return {"x": x, "y": y, "text": text}


def _lead(scene: Scene, label: Placed) -> look.Row:
    to_x, to_y = scene.values(label.spot.x, label.spot.y)
    return _at(scene, (label.x, label.y), label.text) | {"to_x": to_x, "to_y": to_y}


def _texts(rows: Sequence[look.Row], align: Literal["left", "right"], colour: str = look.BLACK) -> alt.Chart:
    """Return labels that begin or end at the places of their rows."""
    chart: alt.Chart = (
        look.frame(rows)
        .mark_text(align=align, baseline="middle", fontSize=look.LABEL_SIZE, color=colour)
        .encode(x="x:Q", y="y:Q", text="text:N")
    )
    return chart


def _front_boxes(scene: Scene) -> list[Box]:
    """Return the boxes of the line, so that it crosses no label."""
    boxes = []
    for (x, y), (next_x, next_y) in pairwise(scene.pixels(*corner) for corner in scene.corners()):
        boxes.append((x, y - 1, next_x, y + 1))
        boxes.append((next_x - 1, min(y, next_y), next_x + 1, max(y, next_y)))
    return boxes


def _limit_boxes(scene: Scene) -> list[Box]:
    """Return the boxes of the limit's own text."""
    at = [limit * share for limit in scene.limits() for share in (1, 1 - scene.verdict.plan.margin)]
    xs = [scene.pixels(x, scene.bottom)[0] for x in at]
    return [(x - 14, HEIGHT - 130, x + 2, float(HEIGHT)) for x in xs]


_STATES = ("control", "Pareto set", "beaten by another", "no margin or in doubt", "out of memory (at the edge)")
_COLOURS = dict(zip(_STATES, (look.BLACK, look.BLUE, look.SKY, look.ORANGE, look.VERMILION), strict=True))
_SHAPES = dict(zip(_STATES, ("diamond", "circle", "square", "triangle-up", "cross"), strict=True))


def memory_throughput(verdict: SweepVerdict) -> Picture:
    """Draw the worst rank's peak allocated bytes and throughput per GPU; out-of-memory cells are at the right edge."""
    title, name = "Memory against throughput", "memory_throughput"
    scene = scene_of(verdict)
    if scene is None:
        return look.no_picture(name, title, "No cell has both a peak and a throughput.")
    layers = [*_limit_layers(scene), _front(scene), *_spreads(scene), *label_layers(scene), _points(scene)]
    chart = alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)
    caption = (
        "Up and to the left is better. No other cell is shown to be faster than a cell of the Pareto set without using "
        "more memory. "
        + ("Vertical lines reach from the slowest to the fastest repeat. " if verdict.has_repeats else "")
        + "Where a name does not fit, the picture shows the cell's number in the table."
        + _not_shown(scene)
    )
    return look.picture(name, title, verdict.plan.title, chart, caption)


def _not_shown(scene: Scene) -> str:
    shown = {cell.name for cell in (*scene.ran, *scene.oom)}
    missing = [cell.name for cell in scene.verdict.cells if cell.name not in shown]
    return f" Not measured, so not shown: {'; '.join(missing)}." if missing else ""


def _points(scene: Scene) -> alt.Chart:
    rows = _marks(scene)
    present = [state for state in _STATES if any(row["state"] == state for row in rows)]
    legend = alt.Legend(orient="bottom", columns=5, values=present)
    wide = alt.Scale(domain=[scene.left, scene.right], nice=False, zero=False)
    high = alt.Scale(domain=[scene.bottom, scene.top], nice=False, zero=False)
    points: alt.Chart = (
        look.frame(rows)
        .mark_point(filled=True, size=110, opacity=1, stroke="white", strokeWidth=0.8)
        .encode(
            x=alt.X("x:Q", title=f"Peak allocated at the worst rank ({scene.unit})", scale=wide),
            y=alt.Y("y:Q", title="Throughput (tokens/s/GPU)", scale=high),
            color=look.kinds(alt.Color, "state", _COLOURS, legend=legend),
            shape=look.kinds(alt.Shape, "state", _SHAPES, legend=legend),
            tooltip=[
                "cell:N",
                "state:N",
                "memory:N",
                alt.Tooltip("y:Q", title="tokens/s/GPU", format=".5g"),
                "TFLOP/s/GPU:N",
            ],
        )
    )
    return points


def _spreads(scene: Scene) -> list[alt.Chart]:
    """Return a vertical line per cell with repeats."""
    rows: list[look.Row] = []
    for cell in scene.ran:
        low, high = scene.spread(cell)
        if low < high:
            rows.append({"x": scene.point(cell)[0], "low": low, "high": high})
    if not rows:
        return []
    line: alt.Chart = (
        look.frame(rows).mark_rule(color=look.GREY, strokeWidth=1.2).encode(x="x:Q", y="low:Q", y2="high:Q")
    )
    return [line]


def _marks(scene: Scene) -> list[look.Row]:
    rows = [
        _mark(cell, scene.point(cell), _state(cell, scene.verdict), format_bytes(cell.peak_bytes or 0))
        for cell in scene.ran
    ]
    edge = [_mark(cell, scene.edge(number), _STATES[4], "did not fit") for number, cell in enumerate(scene.at_edge)]
    return rows + edge


def _mark(cell: CellVerdict, at: tuple[float, float], state: str, memory: str) -> look.Row:
    flops = figure(BY_NAME["tflops_per_gpu"], cell.figure(BY_NAME["tflops_per_gpu"]))
    return {"x": at[0], "y": at[1], "state": state, "cell": cell.name, "memory": memory, "TFLOP/s/GPU": flops}


def _state(cell: CellVerdict, verdict: SweepVerdict) -> str:
    if cell.is_control:
        return _STATES[0]
    if cell.doubts or cell.fits is False:
        return _STATES[3]
    return _STATES[1] if cell.name in verdict.pareto else _STATES[2]


def _front(scene: Scene) -> alt.Chart:
    """Return steps through the Pareto set: between two of its cells, the smaller one's throughput is achievable."""
    rows: list[look.Row] = [{"x": x, "y": y} for x, y in scene.corners()]
    line: alt.Chart = (
        look.frame(rows)
        .mark_line(color=look.BLUE, interpolate="step-after", strokeWidth=1.4, opacity=0.7, clip=True)
        .encode(x="x:Q", y="y:Q")
    )
    return line


def _limit_layers(scene: Scene) -> list[alt.Chart]:
    """Return a line at the memory limit and a dashed one at the margin; a text at the edge if both are out of sight."""
    margin = scene.verdict.plan.margin
    lines = [
        line
        for limit in scene.limits()
        for line in (
            (limit, f"memory {format_bytes(limit * scene.scale)}", [1, 0]),
            (limit * (1 - margin), f"less {margin * 100:g} %", [5, 4]),
        )
    ]
    layers = []
    for x, text, dash in lines:
        if scene.left < x < scene.right:
            row: look.Row = {"x": x, "y": scene.bottom, "text": text}
            base = look.frame([row])
            layers.append(base.mark_rule(color=look.GREY, strokeDash=dash, strokeWidth=1.3).encode(x="x:Q"))
            words = base.mark_text(angle=270, align="left", dx=6, dy=-6, color=look.GREY, fontSize=10)
            layers.append(words.encode(x="x:Q", y="y:Q", text="text:N"))
    return layers if layers or not lines else [_beyond(scene, lines[0][1])]


def _beyond(scene: Scene, memory: str) -> alt.Chart:
    row: look.Row = {"x": scene.right, "y": scene.bottom, "text": f"{memory}, beyond this edge →"}
    words: alt.Chart = (
        look.frame([row])
        .mark_text(align="right", dx=-6, dy=-8, color=look.GREY, fontSize=10)
        .encode(x="x:Q", y="y:Q", text="text:N")
    )
    return words
