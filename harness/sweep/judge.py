"""Judges a sweep: Pareto set, reference and recommendation."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.judging import statistics
from harness.judging.saving import first_run
from harness.judging.statistics import half_width
from harness.records.goldens import GateOptions
from harness.records.sweep import SweepData
from harness.sweep.cell import Frame, MeasuredCell, control_ended, judged, measured
from harness.sweep.values import CellVerdict, Recommendation, SweepVerdict
from harness.units import format_bytes, format_percent


def pareto(points: Mapping[str, tuple[float, float]]) -> tuple[str, ...]:
    """Names of the points, less being better in both coordinates, that no other dominates; in order of the first.

    One point dominates another when it is no worse in both and better in one; equal points are all kept.
    """

    def is_beaten(point: tuple[float, float]) -> bool:
        return any(one != point and one[0] <= point[0] and one[1] <= point[1] for one in points.values())

    return tuple(
        sorted((name for name, point in points.items() if not is_beaten(point)), key=lambda name: points[name])
    )


# What can still run is waited for, and what is in doubt is told; these never have figures.
_LOST = frozenset({"pruned", "oom", "failed", "illegal", "skipped_inert"})


def stand_in(cells: Sequence[MeasuredCell], control: MeasuredCell) -> MeasuredCell | None:
    """The fastest cell that ran and is not in doubt, by the same tokens; None where the control may have figures."""
    if control.status not in _LOST:
        return None
    sure = (cell for cell in cells if cell.status == "ok" and not cell.doubts and cell.costs_s)
    able = [cell for cell in sure if cell.metrics and cell.metrics.peak_allocated_bytes]
    return min(able, key=lambda cell: statistics.mean(cell.costs_s), default=None)


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
        does = "does" if len(dearer) == 1 else "do"
        parts.append(f"{'; '.join(cell.name for cell in dearer)} would be faster but {does} not leave the margin")
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
    sure = [cell.metrics.peak_allocated_bytes for cell in cells if cell.is_comparable and cell.metrics]
    lacks_ranks = any(
        peak and peak.missing_ranks for peak in sure
    )  # of cells without doubt only those from training logs
    known = " on the ranks whose memory is known" if lacks_ranks else ""
    return f"{leaves} {margin * 100:g} % of {_memory(cells)} free{known}"


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


_DEFAULT_GATE = GateOptions()


def judge_sweep(data: SweepData, gate: GateOptions = _DEFAULT_GATE) -> SweepVerdict:
    """Every cell against the control, its prediction and its stored golden. Also of a sweep that is not finished.

    BadRequestError where ``gate`` names a golden that cannot be read.
    """
    plan = data.plan
    planned = (data.control.planned, *plan.cells)
    reference = next((cell.spec for cell in planned if cell.spec), None)
    first = first_run(data)
    found = [measured(cell, reference, first) for cell in data.cells]
    control = next(cell for cell in found if cell.name == plan.control)
    instead = stand_in(found, control)
    frame = Frame(control, instead, plan.margin, gate)
    cells = tuple(judged(cell, frame) for cell in found)
    points = {
        cell.name: (cell.cost_s, float(cell.peak_bytes))
        for cell in cells
        if cell.is_comparable and cell.cost_s is not None and cell.peak_bytes is not None
    }
    costs = {cell.name: cell.costs_s for cell in found}
    num_due = data.num_due
    return SweepVerdict(
        sweep_id=plan.sweep_id,
        title=plan.title,
        recipe=plan.recipe,
        gpu=plan.gpu,
        control=plan.control,
        reference=instead.name if instead else control.name if control.status == "ok" and not control.doubts else None,
        reference_why=control_ended(control) if instead else "",
        axes=plan.axes,
        repeats=plan.repeats,
        capacity_bytes=plan.capacity_bytes,
        margin=plan.margin,
        cells=cells,
        pareto=pareto(points),
        recommendation=unfinished(num_due, data.sweep_dir) if num_due else recommend(cells, costs, plan.margin),
        num_due=num_due,
        notes=(*plan.notes, *_unused_golden(cells, gate)),
        started_at=plan.started_at,
        command=plan.command,
    )


def _unused_golden(cells: Sequence[CellVerdict], gate: GateOptions) -> tuple[str, ...]:
    if not gate.names_one_golden or any(cell.golden for cell in cells):
        return ()
    return (f"golden values {gate.golden_values_path}: for none of the cells that ended well, so nothing is judged",)
