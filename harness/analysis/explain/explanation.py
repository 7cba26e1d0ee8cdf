"""Why a run is not like what it is held against: every recorded difference, by what it is likely to have moved."""

from dataclasses import replace

from harness.analysis.explain.changes import changes, moved
from harness.analysis.explain.contrast import contrast
from harness.analysis.explain.effects import Effect, grouped
from harness.analysis.explain.sizes import Estimate
from harness.analysis.explain.values import Cause, Change, Departure, Explanation, Fit, Says, Side
from harness.analysis.explain.verdict import advice, verdict
from harness.units import format_percent

_ALL = 0.8  # of the change: arithmetic on clocks and FLOPs is no better than that
_TIME, _RATE = "step_time_s", "tflops_per_gpu"
_SCALES_WITH_WORK = ("step_time_s", "counted_flops_per_step")


def explain(ours: Side, theirs: Side) -> Explanation:
    """The changes of the metrics, the causes that can have made them first, and what to do next."""
    told, side_by_side = changes(ours, theirs), contrast(ours, theirs)
    changed = {change.metric: change for change in told}
    found = [_cause(effect, here, (ours, theirs), changed) for effect, here in grouped(side_by_side.departures)]
    ordered = sorted(found, key=lambda cause: not cause.can_explain)  # stable: the table's order within each
    causes = tuple(replace(cause, rank=rank) for rank, cause in enumerate(ordered, 1))
    todo = advice(told, causes, is_published=theirs.kind == "published")
    return Explanation(ours, theirs, told, side_by_side, causes, verdict(told, causes), todo)


def _cause(
    effect: Effect, departures: tuple[Departure, ...], sides: tuple[Side, Side], changed: dict[str, Change]
) -> Cause:
    estimate = effect.estimate(*sides)
    says = tuple(_says(metric, estimate, changed.get(metric)) for metric in _shown(effect.moves, changed))
    return Cause(0, effect.name, departures, says, effect.size, effect.why)


def _shown(moves: tuple[str, ...], changed: dict[str, Change]) -> tuple[str, ...]:
    """What moves the step time moves throughput, which stands beside it where only throughput is known on both sides."""
    known = {name for name, change in changed.items() if change.change is not None}
    stands_in = _TIME not in known and _RATE in known
    return (*moves, _RATE) if stands_in and _TIME in moves else moves


def _says(metric: str, estimate: Estimate | None, change: Change | None) -> Says:
    expected, sign = _expected(metric, estimate)
    basis = f"{estimate.text}: " if estimate and (expected is not None or sign is not None) else ""
    if change is None or change.change is None:
        made = "" if expected is None else f"up to {format_percent(expected)}; "
        return Says(metric, "unmeasured", f"{basis}{made}no figure on both sides", expected)
    if not moved(change) or (change.is_noise and expected is None):
        return Says(metric, "nothing", "nothing to explain", expected)
    fit, text = _fit(change.change, expected, sign)
    return Says(metric, fit, basis + text, expected)


def _expected(metric: str, estimate: Estimate | None) -> tuple[float | None, int | None]:
    """The relative change of that metric, or its direction; (None, None) where arithmetic cannot say."""
    if estimate is None:
        return None, None
    if metric in _SCALES_WITH_WORK:
        return estimate.step_time, estimate.step_time_sign
    if metric == _RATE:  # more work takes longer at the same rate
        return None, None
    return None, estimate.memory_sign


def _fit(measured: float, expected: float | None, sign: int | None) -> tuple[Fit, str]:
    """Whether sign and size agree."""
    told = format_percent(measured)
    direction = sign if expected is None else (expected > 0) - (expected < 0)
    if direction is None:
        return "possible", f"may have made the {told}; neither direction nor size can be reckoned"
    if direction * measured <= 0:
        makes = {1: "a rise", -1: "a fall", 0: "no change"}[direction]
        return "no", f"no, it makes for {makes}, and this changed by {told}"
    if expected is None:
        return "direction", f"makes for a change in the direction of the {told}; its size cannot be reckoned"
    if abs(expected) >= _ALL * abs(measured):
        return "all", f"up to {format_percent(expected)}, enough for the measured {told}"
    return "part", f"up to {format_percent(expected)}, a part of the measured {told}"
