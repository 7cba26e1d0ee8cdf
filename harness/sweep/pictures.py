"""Draws a sweep: cells by memory and throughput, their predictions, the ranks of one cell."""

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from operator import gt

from harness.judge import readings
from harness.judge.saving import highest_per_rank
from harness.records.run import RunRecord
from harness.records.sweep import SweepData
from harness.show import chart as look
from harness.show.chart import Axis, Bar, Bars, Plane, Point, front, memory_limit, memory_unit
from harness.show.figures import format_rate
from harness.show.page import Picture
from harness.sweep.values import CellVerdict, SweepVerdict
from harness.units import format_bytes

_BEST, _CONTROL, _FRONT = "use this", "control", "Pareto set"
_BEATEN, _DOUBTFUL = "beaten by another", "no margin or in doubt"
_LOOKS = {_BEST: (look.VERMILION, "diamond"), _CONTROL: (look.INK, "triangle"), _FRONT: (look.BLUE, "circle"),
          _BEATEN: (look.SKY, "square"), _DOUBTFUL: (look.ORANGE, "cross")}  # fmt: skip
_MOST_ROWS = 16


def pictures(data: SweepData, verdict: SweepVerdict) -> tuple[Picture, ...]:
    """Return every picture for which there are figures, that of the choice first."""
    ran = {cell.planned.name: [run for run in cell.runs if run.status == "ok"] for cell in data.cells}
    best = verdict.recommendation.cell or verdict.plan.control
    shown = best if ran.get(best) else next((name for name, runs in ran.items() if runs), "")
    return (
        *_choice(verdict),
        *_predicted(verdict),
        *(_ranks(shown, ran[shown]) if shown else ()),
    )


def _choice(verdict: SweepVerdict) -> Iterator[Picture]:
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


def _predicted(verdict: SweepVerdict) -> Iterator[Picture]:
    """Yield measured peaks as bars, with the predicted ranges."""
    cells = [(cell, cell.peak_bytes, cell.predicted) for cell in verdict.cells if cell.predicted]
    if not cells:
        return
    unit, scale = memory_unit([own.peak_range_bytes[1] for *_, own in cells])
    rows = []
    for cell, peak, own in cells:
        low, high = own.peak_range_bytes
        text = f"predicted {format_bytes(own.whole_run_peak_bytes)}"
        text = text if peak is None else f"{format_bytes(peak)}, {text}"
        parts = () if peak is None else (("measured", peak / scale),)
        rows.append(Bar(f"{cell.index}: {cell.name}", text, parts, (low / scale, high / scale)))
    chart = Bars(Axis(f"Peak of the worst rank ({unit})"), {"measured": (look.SKY, "")}, tuple(rows))
    caption = "Lines are predicted ranges. A cell without a bar did not finish."
    yield Picture("predicted_measured", "Predicted and measured peaks", caption, chart)


_PARTS = {"allocated (tensors)": look.BLUE, "reserved, not allocated": look.ORANGE, "in use outside torch": look.GREY}


def _ranks(name: str, runs: Sequence[RunRecord]) -> Iterator[Picture]:
    """Yield a bar per rank of one cell; of many ranks the fullest of each pipeline stage."""
    allocated, reserved = (highest_per_rank(runs, read) for read in (readings.allocated, readings.reserved))
    used = [highest_per_rank([run], readings.device_used(run.nodes)) for run in runs]
    stages = {rank.rank: rank.coordinates.pp for rank in runs[0].ranks}
    fullest = {stages[rank]: rank for rank in sorted(allocated, key=lambda rank: (allocated[rank], -rank))}
    ranks = sorted(allocated if len(allocated) <= _MOST_ROWS else fullest.values())
    unit, scale = memory_unit([*allocated.values(), *reserved.values()])
    rows = []
    for rank in ranks:
        peaks = [found[rank] for found in (allocated, reserved) if rank in found]
        ends = [0, *peaks, *sorted(found[rank] for found in used if rank in found)[-1:]]
        sizes = (max(0, end - start) / scale for start, end in pairwise(ends))
        parts = zip(_PARTS, sizes, strict=False)
        rows.append(Bar(f"rank {rank} (stage {stages[rank]})", format_bytes(ends[-1]), tuple(parts)))
    looks = {part: (colour, "") for part, colour in _PARTS.items()}
    caption = f"Cell {name}, the highest over its repeats."
    caption += " Only the fullest rank of each pipeline stage." * (len(ranks) < len(allocated))
    caption += "" if reserved else " Only allocated bytes exist: a CPU has no caching allocator and no device memory."
    if rows:
        yield Picture("rank_memory", "Memory of every rank", caption, Bars(Axis(f"Peak ({unit})"), looks, tuple(rows)))
