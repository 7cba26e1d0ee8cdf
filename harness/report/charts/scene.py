"""The plane of memory against throughput: what stands where, before anything is drawn."""

from dataclasses import dataclass

from harness.analysis.sweep.values import CellVerdict, SweepVerdict
from harness.report.charts.units import memory_unit

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
        """Where a cell that ran stands, in the units of the axes."""
        return _figures(cell, self.scale)

    def edge(self, number: int) -> tuple[float, float]:
        """Where one of those that ran out of memory stands: down the right edge, for it has no throughput."""
        num_lines = len(self.at_edge) + bool(self.num_beyond)
        return self.values(WIDTH - 12, 40 + min(20.0, (HEIGHT - 70) / num_lines) * number)

    @property
    def at_edge(self) -> tuple[CellVerdict, ...]:
        """Those that ran out of memory and find room at the edge."""
        return self.oom[:_MOST_AT_EDGE]

    @property
    def num_beyond(self) -> int:
        """How many more ran out of memory; their number stands below the last."""
        return len(self.oom) - len(self.at_edge)

    def corners(self) -> list[tuple[float, float]]:
        """Points of the line through the Pareto set, from left to right."""
        points = sorted(self.point(cell) for cell in self.ran if cell.name in self.verdict.pareto)
        return [(points[0][0], self.bottom), *points, (self.right, points[-1][1])] if points else []

    def limits(self) -> list[float]:
        """Memory per rank, from the least on: of all cells the same unless the limit is varied."""
        return [size / self.scale for size in _limits(self.verdict)]

    def pixels(self, x: float, y: float) -> tuple[float, float]:
        """Pixels from the left and from the top."""
        return (x - self.left) / (self.right - self.left) * WIDTH, (self.top - y) / (self.top - self.bottom) * HEIGHT

    def values(self, x: float, y: float) -> tuple[float, float]:
        """What :meth:`pixels` came from."""
        return self.left + x / WIDTH * (self.right - self.left), self.top - y / HEIGHT * (self.top - self.bottom)


def scene_of(verdict: SweepVerdict) -> Scene | None:
    """None where no cell has both a peak and a throughput.

    Throughput is that of tokens at the step time that the Pareto set is made of, so that its line only rises, whatever
    the cells' sequence lengths, and no cell stands above it.
    """
    ran = tuple(cell for cell in verdict.cells if _is_shown(cell))
    if not ran:
        return None
    unit, scale = memory_unit([*_limits(verdict), *(cell.peak_bytes or 0 for cell in ran)])
    xs, ys = zip(*(_figures(cell, scale) for cell in ran), strict=True)
    least, most, limit = min(xs), max(xs), max(_limits(verdict), default=0) / scale
    # A limit far beyond every point would squeeze them into a corner: it is then said in words at the edge.
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


def _is_shown(cell: CellVerdict) -> bool:
    return cell.status == "ok" and cell.peak_bytes is not None and _tokens_per_s(cell) is not None


def _figures(cell: CellVerdict, scale: float) -> tuple[float, float]:
    rate = _tokens_per_s(cell)
    assert cell.peak_bytes is not None and rate is not None
    return cell.peak_bytes / scale, rate


def _tokens_per_s(cell: CellVerdict) -> float | None:
    return cell.speed.tokens_per_s_per_gpu if cell.speed else None


def _limits(verdict: SweepVerdict) -> list[int]:
    return sorted(size for size in verdict.capacities if size)
