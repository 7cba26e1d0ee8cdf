"""Draws a sweep: its cells by memory and throughput."""

from collections.abc import Collection, Iterator
from operator import gt

from harness.show import chart as look
from harness.show.chart import Axis, Plane, Point, front, memory_limit, memory_unit
from harness.show.figures import format_rate
from harness.show.page import Picture
from harness.sweep.values import CellVerdict, SweepVerdict
from harness.units import format_bytes

_BEST, _CONTROL, _FRONT = "use this", "control", "Pareto set"
_BEATEN, _DOUBTFUL = "beaten by another", "no margin or in doubt"
_LOOKS = {_BEST: (look.VERMILION, "diamond"), _CONTROL: (look.INK, "triangle"), _FRONT: (look.BLUE, "circle"),
          _BEATEN: (look.SKY, "square"), _DOUBTFUL: (look.ORANGE, "cross")}  # fmt: skip


def pictures(verdict: SweepVerdict) -> Iterator[Picture]:
    """Yield a point per cell with its number: the worst rank's peak, and tokens at the step time of the Pareto set."""
    known = [(cell, *figures) for cell in verdict.cells for figures in _figures(cell)]
    if not known:
        return
    unit, scale = memory_unit([size for _, size, _ in known])
    limits, off = memory_limit(verdict.limits, scale, max(size for _, size, _ in known) / scale)
    points = [_point(cell, verdict, size / scale, rate) for cell, size, rate in known]
    line = front(_FRONT, (point for point in points if point.name in verdict.pareto), gt)
    x, y = Axis(f"Peak allocated at the worst rank ({unit})"), Axis("Throughput (tokens/s/GPU)")
    chart = Plane(x, y, _LOOKS, tuple(points), line, limits)
    caption = (
        "Up and to the left is better. The numbers are those of the table. Vertical lines: from the slowest to the "
        "fastest repeat. " + _not_shown(verdict, [cell.name for cell, *_ in known])
    )
    yield Picture("memory_throughput", "Which setting: memory against throughput", caption.strip() + off, chart)


def _figures(cell: CellVerdict) -> list[tuple[int, float]]:
    rate = cell.speed.tokens_per_s_per_gpu if cell.speed and cell.status == "ok" else None
    return [] if rate is None or cell.peak_bytes is None else [(cell.peak_bytes, rate)]


def _not_shown(verdict: SweepVerdict, shown: Collection[str]) -> str:
    gone = [cell.name for cell in verdict.cells if cell.status == "oom"]
    missing = [cell.name for cell in verdict.cells if cell.name not in (*shown, *gone)]
    sentences = (("Out of memory", gone), ("Not measured, so not shown", missing))
    return " ".join(f"{what}: {'; '.join(names)}." for what, names in sentences if names)


def _point(cell: CellVerdict, verdict: SweepVerdict, x: float, rate: float) -> Point:
    rates = sorted(rate * (cell.cost_s or 0) / cost for cost in cell.costs_s)
    text = f"{format_bytes(cell.peak_bytes or 0)}, {format_rate(rate)} tok/s"
    return Point(
        x,
        rate,
        _state(cell, verdict),
        f"{cell.index}",
        cell.name,
        text,
        f"{cell.name}: {text}",
        upwards=(rates[0], rates[-1]) if rates else None,
    )


def _state(cell: CellVerdict, verdict: SweepVerdict) -> str:
    if cell.name == verdict.recommendation.cell:
        return _BEST
    if cell.is_control:
        return _CONTROL
    if cell.doubts or cell.fits is False:
        return _DOUBTFUL
    return _FRONT if cell.name in verdict.pareto else _BEATEN
