"""Draws memory against throughput: every cell with its number, the Pareto set, the limit."""

from collections.abc import Collection
from operator import gt

import altair as alt

from harness.records.metrics import BY_NAME
from harness.show.charts import drawing as look
from harness.show.charts import plane
from harness.show.charts.drawing import memory_unit, shortened
from harness.show.figures import figure
from harness.show.page import Picture
from harness.sweep.values import CellVerdict, SweepVerdict
from harness.units import format_bytes

_LOOKS = {
    "control": (look.BLACK, "diamond"),
    "Pareto set": (look.BLUE, "circle"),
    "beaten by another": (look.SKY, "square"),
    "no margin or in doubt": (look.ORANGE, "triangle-up"),
}
_CONTROL, _FRONT, _BEATEN, _DOUBTFUL = _LOOKS
_HEIGHT = 440


def labels(verdict: SweepVerdict) -> dict[str, str]:
    """Return each cell's name in pictures: its number in the table, and its name, shortened."""
    return {
        cell.name: f"{cell.index}: {shortened(cell.name)}{' (control)' if cell.is_control else ''}"
        for cell in verdict.cells
    }


def memory_throughput(verdict: SweepVerdict) -> Picture:
    """Draw the worst rank's peak allocated bytes and throughput per GPU; each point has its cell's number.

    Throughput is that of tokens at the step time that the Pareto set is made of, so that its line only rises, whatever
    the cells' sequence lengths, and no cell stands above it.
    """
    title, name = "Memory against throughput", "memory_throughput"
    known = [(cell, *figures) for cell in verdict.cells for figures in _figures(cell)]
    if not known:
        return look.no_picture(name, title, "No cell has both a peak and a throughput.")
    limited = [(each.capacity_bytes or 0, each.budget_bytes or 0, each.free_text) for each in verdict.limits]
    unit, scale = memory_unit([size for size, *_ in limited] + [size for _, size, _ in known])
    places = {cell.name: (size / scale, rate) for cell, size, rate in known}
    limits, off = plane.limits(limited, scale, max(places.values())[0])
    tooltip = ["cell:N", "state:N", "memory:N", alt.Tooltip("y:Q", title="tokens/s/GPU", format=".5g"), "TFLOP/s/GPU:N"]
    titles = (f"Peak allocated at the worst rank ({unit})", "Throughput (tokens/s/GPU)")
    spreads = [row for cell, *_ in known for row in _spread(cell, *places[cell.name])]
    layers = [
        *plane.limit_lines(limits, "x"),
        plane.front((places[name] for name in verdict.pareto if name in places), gt),
        look.frame(spreads).mark_rule(color=look.GREY, strokeWidth=1.2).encode(x="x:Q", y="low:Q", y2="high:Q"),
        *plane.points([_mark(cell, verdict, *places[cell.name]) for cell, *_ in known], _LOOKS, titles, tooltip),
    ]
    chart = alt.layer(*layers).properties(width=look.WIDTH, height=_HEIGHT)
    caption = (
        "Up and to the left is better. The numbers are those of the table. No other cell is shown to be faster than a "
        "cell of the Pareto set without using more memory. "
        + "Vertical lines reach from the slowest to the fastest repeat. " * bool(spreads)
        + _not_shown(verdict, places.keys())
    )
    return look.picture(name, title, verdict.plan.title, chart, caption.strip() + off)


def _figures(cell: CellVerdict) -> list[tuple[int, float]]:
    rate = cell.speed.tokens_per_s_per_gpu if cell.speed and cell.status == "ok" else None
    return [] if rate is None or cell.peak_bytes is None else [(cell.peak_bytes, rate)]


def _not_shown(verdict: SweepVerdict, shown: Collection[str]) -> str:
    gone = [cell.name for cell in verdict.cells if cell.status == "oom"]
    missing = [cell.name for cell in verdict.cells if cell.name not in (*shown, *gone)]
    sentences = (("Out of memory", gone), ("Not measured, so not shown", missing))
    return " ".join(f"{what}: {'; '.join(names)}." for what, names in sentences if names)


def _spread(cell: CellVerdict, x: float, rate: float) -> list[look.Row]:
    """Return the throughput of the slowest and of the fastest repeat; nothing for a single run."""
    rates = sorted(rate * (cell.cost_s or 0) / cost for cost in cell.costs_s)
    return [{"x": x, "low": rates[0], "high": rates[-1]}] if rates and rates[0] < rates[-1] else []


def _mark(cell: CellVerdict, verdict: SweepVerdict, x: float, y: float) -> look.Row:
    metric, best = BY_NAME["tflops_per_gpu"], verdict.recommendation.cell
    return {
        "x": x,
        "y": y,
        "text": f"{cell.index}{' (use this)' if cell.name == best else ''}",
        "state": _state(cell, verdict),
        "cell": cell.name,
        "memory": format_bytes(cell.peak_bytes or 0),
        "TFLOP/s/GPU": figure(metric, cell.figure(metric)),
    }


def _state(cell: CellVerdict, verdict: SweepVerdict) -> str:
    if cell.is_control:
        return _CONTROL
    if cell.doubts or cell.fits is False:
        return _DOUBTFUL
    return _FRONT if cell.name in verdict.pareto else _BEATEN
