"""Judges a sweep: Pareto set, reference and recommendation."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.experiment.experiment import ExperimentSpec
from harness.foreign.exporting import ToPaste, sayable, to_paste
from harness.judge.gate import default_thresholds
from harness.judge.saving import first_run
from harness.judge.statistics import MIN_RUNS, half_width
from harness.measure.prediction import limits_of
from harness.records.gating import GateOptions
from harness.records.sweep import CellData, SweepData
from harness.sweep.cell import control_ended, judged, measured
from harness.sweep.values import CellVerdict, MeasuredCell, Recommendation, SweepVerdict, room_text
from harness.units import command_text, counted, format_bytes, format_percent, sentence


@dataclass(frozen=True)
class Times:
    """Decides which of two comparable cells is faster, as far as their runs establish it.

    From three repeats on both sides a cell is faster where Welch's 95 % interval of the difference leaves 0 out. With
    fewer, the difference must exceed ``threshold``, the fraction by which single runs of one setting may differ, and
    the range of either cell's own runs.
    """

    threshold: float

    def is_faster(self, cell: CellVerdict, other: CellVerdict) -> bool:
        """Return whether it is established that the first cell's steps take less time than the second's."""
        ours, theirs = _cost(cell)[0], _cost(other)[0]
        half = half_width(other.costs_s, cell.costs_s)
        return theirs - ours > (self.least(cell, other) * theirs if half is None else half)

    def least(self, *cells: CellVerdict) -> float:
        """Return the least established difference of single runs: the threshold, or the widest range of a cell's."""
        return max(self.threshold, *((max(cell.costs_s) - min(cell.costs_s)) / _cost(cell)[0] for cell in cells))

    def noise(self, tied: Sequence[CellVerdict]) -> str:
        """Say why these cells, the fastest first, cannot be ranked, in one clause."""
        best, *rest = tied
        halves = [half_width(cell.costs_s, best.costs_s) for cell in rest]
        known = [half for half in halves if half is not None]
        if len(known) < len(halves):
            return f"differences below {self.least(*tied) * 100:.3g} % need 3 runs of each cell"
        return f"the 95 % interval of the difference is up to +-{max(known) / _cost(best)[0] * 100:.2g} %"


def pareto(cells: Sequence[CellVerdict], times: Times) -> tuple[str, ...]:
    """Return the names of comparable cells that no other cell beats in time with no more memory; the fastest first."""
    able = [cell for cell in cells if cell.is_comparable]

    def is_beaten(cell: CellVerdict) -> bool:
        return any(_cost(other)[1] <= _cost(cell)[1] and times.is_faster(other, cell) for other in able)

    left = [cell for cell in able if not is_beaten(cell)]
    return tuple(cell.name for cell in sorted(left, key=lambda cell: _cost(cell)[0]))


# A control with such a status never has figures, so another cell replaces it. A control that can still run is awaited.
_LOST = frozenset({"pruned", "oom", "failed", "illegal", "skipped_inert"})


def stand_in(cells: Sequence[MeasuredCell], control: MeasuredCell) -> MeasuredCell | None:
    """Return the fastest cell that ran without doubt, for equal tokens; None if the control may have figures."""
    if control.status not in _LOST:
        return None
    sure = (cell for cell in cells if cell.status == "ok" and not cell.doubts and cell.costs_s)
    able = [cell for cell in sure if cell.metrics and cell.metrics.peak_allocated_bytes]
    return min(able, key=lambda cell: fmean(cell.costs_s), default=None)


def recommend(cells: Sequence[CellVerdict], times: Times, margin: float) -> Recommendation:
    """Recommend the fastest cell that fits; if several may be the fastest, the one with the least memory."""
    able = sorted((cell for cell in cells if cell.is_comparable), key=_cost)
    fitting = [cell for cell in able if cell.fits is not False]
    if not fitting:
        return Recommendation(None, _nothing(cells, able, margin))
    best, *_ = tied = [cell for cell in fitting if not times.is_faster(fitting[0], cell)]
    reference = next((cell.name for cell in cells if cell.is_reference), "the control")
    kind = "judged cell" if any(cell.doubts for cell in cells) else "cell"
    among = f"{counted(len(fitting), kind)} {_room(cells, margin)}"
    if len(tied) > 1:
        rest = f", {len(fitting) - len(tied)} of them slower" * (len(tied) < len(fitting))
        is_limited = bool(limits_of((cell.spec for cell in cells), margin))
        return _by_memory(tied, reference, times, f"There are {among}{rest}.", is_limited=is_limited)
    why = f"{best.name} is the fastest of {among}; {_own(best, reference)}{_faster(best, able, times)}."
    return Recommendation(best.name, why, (best.name,))


def _faster(best: CellVerdict, able: Sequence[CellVerdict], times: Times) -> str:
    names = [cell.name for cell in able if cell.fits is False and times.is_faster(cell, best)]
    return f"; faster, but with less memory free: {', '.join(names)}" if names else ""


def _by_memory(
    tied: Sequence[CellVerdict], reference: str, times: Times, among: str, *, is_limited: bool
) -> Recommendation:
    """Return the equally fast cell with the least memory; where that differs by no more than noise, the fastest.

    None where no memory limit is known, and the cell's time was measured as longer by more than the threshold.
    """
    least = min(cell.peak_bytes or 0 for cell in tied)
    noise = max(cell.versus.memory_noise_bytes or 0 for cell in tied)
    small = [cell for cell in tied if (cell.peak_bytes or 0) <= least + noise]
    use, best, is_equal = small[0], tied[0], len(small) == len(tied)
    names, noise_text = tuple(cell.name for cell in tied), f"{sentence(times.noise(tied))}."
    if not is_limited and _cost(use)[0] > _cost(best)[0] * (1 + times.threshold):
        more = max(MIN_RUNS, 2 * max(len(use.costs_s), len(best.costs_s)))
        remedy = f"Repeat each cell {more} times (--repeats {more}), or set a --memory_limit"
        return Recommendation(None, f"No memory limit is known. {remedy}. {noise_text}", names)
    takes = f"{use.name} takes {'as much memory as the others' if is_equal else 'the least memory'}"
    takes = f"{takes}: {_own(use, reference, with_time=False)}"
    return Recommendation(use.name, f"{takes}. {among} {noise_text}", names, is_equal)


def _cost(cell: CellVerdict) -> tuple[float, int]:
    assert cell.cost_s is not None and cell.peak_bytes is not None
    return cell.cost_s, cell.peak_bytes


def _room(cells: Sequence[CellVerdict], margin: float) -> str:
    limits = limits_of((cell.spec for cell in cells), margin)
    return f"that {room_text(limits)}" if limits else "that ran (no memory limit is known)"


def _own(cell: CellVerdict, reference: str, *, with_time: bool = True) -> str:
    peak, versus = f"peak {format_bytes(cell.peak_bytes or 0)}", cell.versus
    saved = versus.memory_saved_bytes
    if cell.is_control or versus.time_change is None or saved is None:
        return f"it is the control, {peak}" if cell.is_control else peak
    time = f"{format_percent(versus.time_change)} time and " if with_time else ""
    return f"{time}{format_bytes(abs(saved))} {'less' if saved >= 0 else 'more'} memory than {reference}, {peak}"


def _nothing(cells: Sequence[CellVerdict], able: Sequence[CellVerdict], margin: float) -> str:
    if able:
        least = min(able, key=lambda cell: cell.peak_bytes or 0)
        smallest = f"{least.name} with {format_bytes(least.peak_bytes or 0)}"
        return f"No cell is one of those {_room(cells, margin)}; the smallest is {smallest}."
    ended = [f"{count} {state}" for state, count in Counter(map(_state, cells)).items()]
    return f"No cell was measured well enough to recommend: {', '.join(ended)}."


def _state(cell: CellVerdict) -> str:
    if cell.status != "ok":
        return cell.status.replace("_", " ").replace("oom", "OOM")
    return "in doubt" if cell.doubts else "without memory" if cell.peak_bytes is None else "ok"


_DEFAULT_GATE = GateOptions()


def judge_sweep(
    data: SweepData, gate: GateOptions = _DEFAULT_GATE, count: Callable[[Sequence[CellData]], Iterable[CellData]] = iter
) -> SweepVerdict:
    """Compare every cell with the control, its prediction and its stored golden. The sweep may be unfinished.

    ``count`` yields the cells that it gets, and may show progress.
    BadRequestError where ``gate`` names a golden that cannot be read.
    """
    plan = data.plan
    planned = (data.control.planned, *plan.cells)
    reference = next((cell.spec for cell in planned if cell.spec), None)
    first = first_run(data)
    found = [measured(cell, reference, first) for cell in count(data.cells)]
    control = next(cell for cell in found if cell.name == plan.control)
    instead = stand_in(found, control)
    threshold = default_thresholds(reference, plan.repeats).time if reference else 0.0
    times = Times(threshold)
    cells = [judged(cell, control, instead, plan.margin, gate) for cell in found]
    best = pareto(cells, times)
    num_due = data.num_due
    go_on = command_text("sweep", "--resume", data.sweep_dir)
    missing = Recommendation(None, f"{counted(num_due, 'run')} still to do: {go_on}")
    use = missing if num_due else recommend(cells, times, plan.margin)  # a missing run may be faster than all others
    return SweepVerdict.of(
        plan,
        plan=plan,
        reference=instead.name if instead else control.name if control.status == "ok" and not control.doubts else None,
        reference_why=control_ended(control) if instead else "",
        cells=[cell.model_copy(update={"pareto": cell.name in best}) for cell in cells],
        pareto=best,
        recommendation=use,
        to_paste=_to_paste(use.cell, cells, control.spec),
        num_runs_missing=num_due,
        notes=(*plan.notes, *_unused_golden(cells, gate)),
    )


def _unused_golden(cells: Sequence[CellVerdict], gate: GateOptions) -> tuple[str, ...]:
    if not gate.names_one_golden or any(cell.golden for cell in cells):
        return ()
    return (f"golden values {gate.golden_values_path} match no cell that ended well, so nothing is judged",)


def _to_paste(name: str | None, cells: Sequence[CellVerdict], control: ExperimentSpec | None) -> ToPaste | None:
    """Return a cell in words of other programs; None where they have no words for a change."""
    best = next((cell.spec for cell in cells if cell.name == name), None)
    return to_paste(best, control) if best and control and sayable(best, control) else None
