"""Draws memory against throughput: every cell with its number, the Pareto set, the limit."""

from dataclasses import dataclass

import altair as alt

from harness.judge.metrics import BY_NAME
from harness.show.charts import drawing as look
from harness.show.charts.drawing import memory_unit, shortened
from harness.show.figures import figure
from harness.show.page import Picture
from harness.sweep.values import CellVerdict, SweepVerdict
from harness.units import format_bytes

HEIGHT = 440


@dataclass(frozen=True)
class Scene:
    """``ran``: cells with both figures. The axes' ranges are in ``unit`` and tokens/s."""

    verdict: SweepVerdict
    ran: tuple[CellVerdict, ...]
    unit: str
    scale: float
    left: float
    right: float
    bottom: float
    top: float

    def point(self, cell: CellVerdict) -> tuple[float, float]:
        """Return the place of a cell that ran, in the units of the axes."""
        return _figures(cell, self.scale)

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


_STATES = ("control", "Pareto set", "beaten by another", "no margin or in doubt")
_COLOURS = dict(zip(_STATES, (look.BLACK, look.BLUE, look.SKY, look.ORANGE), strict=True))
_SHAPES = dict(zip(_STATES, ("diamond", "circle", "square", "triangle-up"), strict=True))


def memory_throughput(verdict: SweepVerdict) -> Picture:
    """Draw the worst rank's peak allocated bytes and throughput per GPU; each point has its cell's number."""
    title, name = "Memory against throughput", "memory_throughput"
    scene = scene_of(verdict)
    if scene is None:
        return look.no_picture(name, title, "No cell has both a peak and a throughput.")
    layers = [*_limit_layers(scene), _front(scene), *_spreads(scene), *_points(scene)]
    chart = alt.layer(*layers).properties(width=look.WIDTH, height=HEIGHT)
    caption = (
        "Up and to the left is better. The numbers are those of the table. No other cell is shown to be faster than a "
        "cell "
        "of the Pareto set without using more memory. "
        + ("Vertical lines reach from the slowest to the fastest repeat. " if verdict.has_repeats else "")
        + _not_shown(scene)
    )
    return look.picture(name, title, verdict.plan.title, chart, caption)


def _not_shown(scene: Scene) -> str:
    gone = [cell.name for cell in scene.verdict.cells if cell.status == "oom"]
    missing = [cell.name for cell in scene.verdict.cells if cell not in scene.ran and cell.name not in gone]
    sentences = (("Out of memory", gone), ("Not measured, so not shown", missing))
    return " ".join(f"{what}: {'; '.join(names)}." for what, names in sentences if names)


def _points(scene: Scene) -> list[alt.Chart]:
    rows = _marks(scene)
    present = [state for state in _STATES if any(row["state"] == state for row in rows)]
    legend = alt.Legend(orient="bottom", columns=5, values=present)
    wide = alt.Scale(domain=[scene.left, scene.right], nice=False, zero=False)
    high = alt.Scale(domain=[scene.bottom, scene.top], nice=False, zero=False)
    base = look.frame(rows)
    points = base.mark_point(filled=True, size=110, opacity=1, stroke="white", strokeWidth=0.8).encode(
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
    numbers = base.mark_text(align="left", dx=8, dy=-8, fontSize=look.LABEL_SIZE, color=look.BLACK)
    return [points, numbers.encode(x="x:Q", y="y:Q", text="number:N")]


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
    metric, best = BY_NAME["tflops_per_gpu"], scene.verdict.recommendation.cell
    return [
        {
            "x": scene.point(cell)[0],
            "y": scene.point(cell)[1],
            "number": f"{cell.index} (use this)" if cell.name == best else str(cell.index),
            "state": _state(cell, scene.verdict),
            "cell": cell.name,
            "memory": format_bytes(cell.peak_bytes or 0),
            "TFLOP/s/GPU": figure(metric, cell.figure(metric)),
        }
        for cell in scene.ran
    ]


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
