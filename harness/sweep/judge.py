"""Judges a sweep: Pareto set and recommendation."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.experiment.experiment import ExperimentSpec
from harness.foreign.exporting import ToPaste, sayable, to_paste
from harness.judge.gate import default_thresholds
from harness.judge.saving import first_run
from harness.judge.statistics import MIN_RUNS, half_width
from harness.measure.prediction import limits_of
from harness.predict.limits import Limits
from harness.records.gating import GateOptions
from harness.records.sweep import SweepData
from harness.sweep.cell import judged, measured, no_comparison
from harness.sweep.values import CellVerdict, MeasuredCell, Recommendation, SweepVerdict
from harness.units import command_text, counted, format_bytes


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


def _stand_in(cells: Sequence[MeasuredCell], control: MeasuredCell) -> MeasuredCell | None:
    """Return the fastest cell that ran without doubt, for equal tokens; None if the control ran or can still run."""
    if control.status in ("ok", "not_run", "interrupted"):
        return None
    sure = (cell for cell in cells if cell.status == "ok" and not cell.doubts and cell.costs_s)
    return min(sure, key=lambda cell: cell.cost_s or 0, default=None)


def recommend(cells: Sequence[CellVerdict], times: Times, margin: float) -> Recommendation:
    """Recommend the fastest cell that fits; if several may be the fastest, the one with the least memory.

    None of these where no memory limit is known, and the cell's time was measured as longer by more than the threshold.
    """
    able = sorted((cell for cell in cells if cell.is_comparable), key=_cost)
    fitting = [cell for cell in able if cell.fits is not False]
    limits = limits_of((cell.spec for cell in cells), margin)
    room = _room(limits)
    if not able:
        return Recommendation(None, "no setting has a time and a peak to judge")
    if not fitting:
        least = format_bytes(min(_cost(cell)[1] for cell in able))
        return Recommendation(None, f"no measured setting fits {room}; the smallest needs {least}")
    fastest, *_ = tied = [cell for cell in fitting if not times.is_faster(fitting[0], cell)]
    names, among = tuple(cell.name for cell in tied), f"{counted(len(fitting), 'setting')} {room}"
    if len(tied) == 1:
        return Recommendation(fastest.name, _fastest_of(len(fitting), limits), names)
    use = _leanest(tied)
    if not limits and _cost(use)[0] > _cost(fastest)[0] * (1 + times.threshold):
        more = max(MIN_RUNS, 2 * max(len(use.costs_s), len(fastest.costs_s)))
        why = f"{len(tied)} settings are equally fast, and no memory limit is known; repeat each cell {more} times"
        return Recommendation(None, f"{why} (--repeats {more}), or set a --memory_limit", names, times.noise(tied))
    why = f"{len(tied)} of {among} are equally fast, and none of them takes less memory"
    return Recommendation(use.name, why, names, times.noise(tied))


def _fastest_of(num_fitting: int, limits: list[Limits]) -> str:
    if num_fitting > 1:
        return f"the fastest of {num_fitting} settings {_room(limits)}"
    return f"the only setting that {'fits' if limits else 'ran well,'} {_room(limits)}"


def _room(limits: list[Limits]) -> str:
    sizes = dict.fromkeys(format_bytes(each.budget_bytes or 0) for each in limits[:1] + limits[-1:])
    return f"within {' to '.join(sizes)}" if limits else "without a known memory limit"


def _leanest(tied: Sequence[CellVerdict]) -> CellVerdict:
    """Return the fastest of those with the least memory; a difference of memory within noise is none."""
    most = min(_cost(cell)[1] for cell in tied) + max(cell.versus.memory_noise_bytes or 0 for cell in tied)
    return next(cell for cell in tied if _cost(cell)[1] <= most)


def _cost(cell: CellVerdict) -> tuple[float, int]:
    assert cell.cost_s is not None and cell.peak_bytes is not None
    return cell.cost_s, cell.peak_bytes


_DEFAULT_GATE = GateOptions()


def judge_sweep(data: SweepData, gate: GateOptions = _DEFAULT_GATE) -> SweepVerdict:
    """Judge a sweep, which may be unfinished. BadRequestError where ``gate`` names a golden that cannot be read."""
    plan = data.plan
    planned = (data.control.planned, *plan.cells)
    reference = next((cell.spec for cell in planned if cell.spec), None)
    first = first_run(data)
    found = [measured(cell, reference, first) for cell in data.cells]
    control = next(cell for cell in found if cell.name == plan.control)
    times = Times(default_thresholds(reference, plan.repeats).time if reference else 0.0)
    stand_in = _stand_in(found, control)
    cells = [judged(cell, control, stand_in, plan.margin, gate) for cell in found]
    best = pareto(cells, times)
    num_due = data.num_due
    go_on = command_text("sweep", "--resume", data.sweep_dir)
    missing = Recommendation(None, f"{counted(num_due, 'run')} still to do: {go_on}")
    use = missing if num_due else recommend(cells, times, plan.margin)  # a missing run may be faster than all others
    return SweepVerdict.of(
        plan,
        plan=plan,
        cells=[cell.model_copy(update={"pareto": cell.name in best}) for cell in cells],
        pareto=best,
        recommendation=use,
        reference=stand_in and stand_in.name,
        reference_why=no_comparison(control) if stand_in else None,
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
