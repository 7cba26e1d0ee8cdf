"""Explains a difference: which changes account for it, and how much is left over."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.explain.contrast import contrast
from harness.explain.effects import Effect, Estimate, grouped
from harness.explain.values import Cause, Change, Departure, Explanation, Fit, Says, Side
from harness.judging.metrics import METRICS, SUMMARY_METRICS, Metric
from harness.units import format_percent

# A figure that differs by less is the same, whatever its noise: nobody looks for the cause.
NOTHING = 0.002
_TWO_SIGMA = 2.0
_CPU_ROW = "what equal CPU runs were measured to differ by"


def changes(ours: Side, theirs: Side) -> tuple[Change, ...]:
    """Every metric that is gated or stored and that either side has."""
    return tuple(
        _change(metric, ours, theirs)
        for metric in METRICS
        if (metric.gate or metric.name in SUMMARY_METRICS)
        and (metric.name in ours.metrics or metric.name in theirs.metrics)
    )


def moved(change: Change) -> bool:
    """Whether there are two figures, and they differ."""
    return change.change is not None and abs(change.change) >= NOTHING


def _change(metric: Metric, ours: Side, theirs: Side) -> Change:
    here, there = ours.metrics.get(metric.name), theirs.metrics.get(metric.name)
    change = None if here is None or there is None else (here - there) / there
    noise, basis = (None, "") if change is None else _noise_of_changes(metric, ours, theirs)
    return Change(metric.name, here, there, change, noise, basis)


def _noise_of_changes(metric: Metric, ours: Side, theirs: Side) -> tuple[float | None, str]:
    """What two such figures of equal runs differ by in 19 of 20 cases, and where the spread of one run is known from."""
    known = [(side.spreads[metric.name], side) for side in (ours, theirs) if metric.name in side.spreads]
    if known:
        spread, side = max(known, key=lambda found: found[0])
        error = spread * math.sqrt(1 / ours.num_runs + 1 / theirs.num_runs)
        basis = side.spread_basis or f"the {side.num_runs} runs of the {side.kind}"
        return _TWO_SIGMA * error, f"{basis} spread by {spread * 100:.2f} %"
    if metric.gate == "exact":
        return 0.0, "counted, not measured"
    row = ours.spec.gpu_type if ours.spec else None
    if row is None or not row.is_cpu:
        return None, ""
    return (row.memory_threshold if metric.unit == "bytes" else row.timing_threshold), _CPU_ROW


_TITLES = {metric.name: metric.title for metric in METRICS}
_OF_THE_NODE = frozenset({"throttling or other clocks", "other processes on the GPU", "a slow rank"})


def verdict(changes: Sequence[Change], causes: Sequence[Cause]) -> tuple[str, ...]:
    """Whether there is anything to explain: noise first, then what cannot be known."""
    compared = [change for change in changes if change.change is not None]
    if not compared:
        return ("No metric has a figure on both sides: what differs is listed, not what it changed.",)
    changed = [change for change in compared if moved(change)]
    told = [*_noise(changed), *_unknown(changed)]
    if not changed:
        told.append(f"No change in {_listed(compared)}.")
    elif not any(cause.can_explain for cause in causes) and not all(change.is_noise for change in changed):
        told.append("Nothing that both sides recorded explains the change.")
    alone = [change for change in changes if change.change is None]
    return (*told, *([f"On one side only: {_listed(alone)}."] if alone else []))


def _noise(changed: Sequence[Change]) -> Iterator[str]:
    """One sentence per basis of what is known, with all the metrics that it excuses."""
    excused: dict[str, list[str]] = {}
    for change in changed:
        if change.is_noise:
            limit = f"±{(change.noise or 0) * 100:.1f} % ({change.basis})"
            excused.setdefault(limit, []).append(f"{_TITLES[change.metric]} {format_percent(change.change or 0)}")
    for limit, told in excused.items():
        yield f"There may be nothing to explain, equal runs differ by {limit}: {', '.join(told)}."


def _unknown(changed: Sequence[Change]) -> Iterator[str]:
    unknown = [change for change in changed if change.noise is None]
    if unknown:
        yield f"By how much equal runs differ is not known, neither side has repeats: {_listed(unknown)}."


def _listed(changes: Sequence[Change]) -> str:
    return ", ".join(_TITLES[change.metric] for change in changes)


def advice(changes: Sequence[Change], causes: Sequence[Cause], *, is_published: bool) -> tuple[str, ...]:
    """What to do next, most telling first; nothing where nothing moved. ``is_published``: it is held against such figures."""
    changed = [change for change in changes if moved(change)]
    disturbed = any(cause.can_explain and cause.name in _OF_THE_NODE for cause in causes)
    likely = [cause for cause in causes if cause.can_explain and cause.name not in _OF_THE_NODE]
    if not changed:
        return ()
    told = []
    if any(change.is_noise or change.noise is None for change in changed):
        told.append("repeat the run, three times or more, and compare with --repeat; nightly does so with --confirm")
    if disturbed:
        told.append("repeat it on another node, or here once it is idle and cool, before looking at anything else")
    if likely:
        told.append(f"change one thing back at a time, beginning with: {likely[0].name}")
    elif not disturbed:
        told.append("repeat it on another node; if the change stays, look at what is recorded on neither side")
    if is_published:
        told.append("promote a golden of your own runs: what a published figure does not say cannot be ruled out")
    return tuple(told)


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
