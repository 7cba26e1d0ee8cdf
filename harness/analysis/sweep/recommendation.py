"""The setting to use: the fastest that fits with its margin, and why in one sentence."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.analysis.sweep.values import CellVerdict, Recommendation
from harness.analysis.welch import half_width
from harness.units import format_bytes, format_percent

Costs = Mapping[str, Sequence[float]]


def recommend(cells: Sequence[CellVerdict], costs: Costs, margin: float) -> Recommendation:
    """``costs``: seconds of every repeat by cell's name, for the same tokens. Only cells that are comparable stand."""
    able = sorted((cell for cell in cells if cell.is_comparable), key=_cost)
    fitting = [cell for cell in able if cell.fits is not False]
    if not fitting:
        return Recommendation(None, _nothing(cells, able, margin))
    best, rest = fitting[0], fitting[1:]
    room = _room(cells, margin, leaves="leaves" if len(fitting) == 1 else "leave")
    dearer = [cell for cell in able if cell.fits is False and _cost(cell) < _cost(best)]
    parts = [f"{best.name} is the fastest of {len(fitting)} {'cell' if len(fitting) == 1 else 'cells'} that {room}"]
    reference = next((cell.name for cell in cells if cell.is_reference), "the control")
    parts.append(_own(best, reference))
    if dearer:
        parts.append(f"{'; '.join(cell.name for cell in dearer)} would be faster but {_keeps_no_margin(dearer)}")
    parts.append(_next(best, rest, costs))
    return Recommendation(best.name, "; ".join(part for part in parts if part) + ".")


def unfinished(num_due: int, sweep_dir: Path) -> Recommendation:
    """None yet: what has not run may be faster than all that has."""
    runs = "1 run is" if num_due == 1 else f"{num_due} runs are"
    return Recommendation(None, f"{runs} still to do: mbr-perf sweep --resume {sweep_dir}")


def _cost(cell: CellVerdict) -> tuple[float, int]:
    assert cell.cost_s is not None and cell.peak_bytes is not None
    return cell.cost_s, cell.peak_bytes


def _room(cells: Sequence[CellVerdict], margin: float, leaves: str) -> str:
    if not any(cell.capacity_bytes for cell in cells):
        return "ran (no memory limit is known)"
    known = " on the ranks whose memory is known" if any(map(_lacks_ranks, cells)) else ""
    return f"{leaves} {margin * 100:g} % of {_memory(cells)} free{known}"


def _lacks_ranks(cell: CellVerdict) -> bool:
    """Of cells without doubt only those from training logs do."""
    peak = cell.metrics.peak_allocated_bytes if cell.metrics else None
    return cell.is_comparable and peak is not None and bool(peak.missing_ranks)


def _memory(cells: Sequence[CellVerdict]) -> str:
    """The memory that all are held to, or that each has its own."""
    sizes = {cell.capacity_bytes for cell in cells if cell.spec}
    return format_bytes(sizes.pop() or 0) if len(sizes) == 1 else "their own memory"


def _own(best: CellVerdict, reference: str) -> str:
    peak = f"peak {format_bytes(best.peak_bytes or 0)}"
    versus = best.versus
    if best.is_control or versus is None or versus.time is None or versus.memory is None:
        return f"it is the control, {peak}" if best.is_control else peak
    saved = versus.memory.saved_bytes
    less = f"{format_bytes(abs(saved))} {'less' if saved >= 0 else 'more'}"
    return f"{format_percent(versus.time.fraction)} time and {less} memory than {reference}, {peak}"


def _keeps_no_margin(cells: Sequence[CellVerdict]) -> str:
    return "does not leave the margin" if len(cells) == 1 else "do not leave the margin"


def _next(best: CellVerdict, rest: Sequence[CellVerdict], costs: Costs) -> str:
    """The runner-up, and whether the two can be told apart."""
    if not rest:
        return "no other cell is in question"
    second = rest[0]
    assert best.cost_s and second.cost_s and best.peak_bytes is not None and second.peak_bytes is not None
    slower = format_percent(second.cost_s / best.cost_s - 1)
    saved = best.peak_bytes - second.peak_bytes
    memory = f"{format_bytes(abs(saved))} {'less' if saved >= 0 else 'more'}"
    told = f"next is {second.name}, {slower} time and {memory} memory"
    half = half_width(costs[second.name], costs[best.name])
    if half is None:
        return f"{told} (too few repeats to say whether that order is real)"
    if second.cost_s - best.cost_s <= half:
        return f"{told} (within the 95 % interval: which of the two is faster is not settled)"
    return told


def _nothing(cells: Sequence[CellVerdict], able: Sequence[CellVerdict], margin: float) -> str:
    if able:
        least = min(able, key=lambda cell: cell.peak_bytes or 0)
        return f"No cell leaves {margin * 100:g} % of {_memory(cells)} free; the smallest is {least.name} with {format_bytes(least.peak_bytes or 0)}."
    ended = [
        f"{sum(c.status == status for c in cells)} {status.replace('_', ' ').replace('oom', 'OOM')}"
        for status in dict.fromkeys(c.status for c in cells)
    ]
    return f"No cell was measured well enough to recommend: {', '.join(ended)}."
