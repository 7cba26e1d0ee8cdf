"""Explains a difference: which causes can account for it, and how much remains."""

import math
from collections.abc import Callable, Sequence

from harness.explain.contrast import contrast
from harness.explain.effects import Effect, Estimate, by_effect
from harness.explain.values import Cause, Change, Explanation, Fit, MetricFit, Side
from harness.records.golden import Difference
from harness.records.metrics import BY_NAME, METRICS, SUMMARY_METRICS, Metric
from harness.records.run import BUILT_OTHERWISE
from harness.units import format_percent, grouped

# A smaller change needs no explanation, whatever its noise.
NOTHING = 0.002
_TWO_SIGMA = 2.0
_CPU_ROW = "measured difference of equal CPU runs"


def changes(ours: Side, theirs: Side) -> tuple[Change, ...]:
    """Return every gated or stored metric that either side has."""
    stored = [metric for metric in METRICS if metric.gate or metric.name in SUMMARY_METRICS]
    return tuple(_change(metric, ours, theirs) for metric in stored if metric.name in {*ours.metrics, *theirs.metrics})


def moved(change: Change) -> bool:
    """Return whether there are two values, and they differ."""
    return change.change is not None and abs(change.change) >= NOTHING


def _change(metric: Metric, ours: Side, theirs: Side) -> Change:
    here, there = ours.metrics.get(metric.name), theirs.metrics.get(metric.name)
    if here is None or there is None:
        return Change(metric.name, here, there, None)
    return Change(metric.name, here, there, (here - there) / there, *_noise_of_changes(metric, ours, theirs))


def _noise_of_changes(metric: Metric, ours: Side, theirs: Side) -> tuple[float | None, str]:
    """Return the difference that 19 of 20 pairs of equal runs stay within, and the source of the spread."""
    side = max(ours, theirs, key=lambda side: side.spreads.get(metric.name, -1))
    if (spread := side.spreads.get(metric.name)) is not None:
        error = spread * math.sqrt(1 / ours.num_runs + 1 / theirs.num_runs)
        return _TWO_SIGMA * error, f"the {side.num_runs} runs of the {side.kind} vary by {spread * 100:.2f} %"
    if metric.gate == "exact":
        return 0.0, "counted, not measured"
    row = ours.spec.gpu_type if ours.spec else None
    if row is None or not row.is_cpu:
        return None, ""
    return (row.memory_threshold if metric.unit == "bytes" else row.timing_threshold), _CPU_ROW


_OF_THE_NODE = frozenset({"throttling or other clocks", "other processes on the GPU", "a slow rank"})


# What is said of a change, in this order; the second argument: whether nothing explains the changes.
_SAID: tuple[tuple[Callable[[Change, bool], bool], str], ...] = (
    (lambda each, _: moved(each) and each.is_noise, "may be noise; equal runs differ by as much ({0.basis})"),
    (lambda each, _: moved(each) and each.noise is None, "the noise is unknown, because neither side has repeats"),
    (lambda each, is_open: moved(each) and is_open, "no recorded difference explains the change"),
)


def verdict(changes: Sequence[Change], causes: Sequence[Cause]) -> tuple[str, ...]:
    """Say whether there is anything to explain: noise first, then unknown noise."""
    if all(change.change is None for change in changes):
        return ("No metric has a value on both sides, so the list shows only what differs.",)
    changed = list(filter(moved, changes))
    is_open = not any(cause.can_explain for cause in causes) and not all(change.is_noise for change in changed)
    said = [(text.format(each), each) for applies, text in _SAID for each in changes if applies(each, is_open)]
    titles = grouped((text, BY_NAME[change.metric].title) for text, change in said)
    return tuple(f"{', '.join(each)}: {text}." for text, each in titles.items())


def advice(changes: Sequence[Change], causes: Sequence[Cause], *, is_published: bool) -> tuple[str, ...]:
    """Return the next steps; none if no metric changed. ``is_published``: the reference is a published figure."""
    changed = [change for change in changes if moved(change)]
    able = [cause.name for cause in causes if cause.can_explain]
    likely = [name for name in able if name not in _OF_THE_NODE]
    is_unsure = any(change.is_noise or change.noise is None for change in changed)
    steps = (
        (is_unsure, "repeat the run at least three times, and compare with --repeat (nightly: --confirm)"),
        (len(likely) < len(able), "first repeat the run on another node, or when this one is idle and cool"),
        (bool(likely), f"undo one difference at a time, beginning with: {''.join(likely[:1])}"),
        (not able, "repeat the run on another node"),
        (is_published, "promote a golden of your own runs: a published figure does not state all settings"),
    )
    return tuple(text for applies, text in steps if applies and changed)


_FIND_COMMIT = "find the commit: mbr-perf bisect RUN --metric recompute --good REV --bad REV --repo FOLDER"
_ALL = 0.8  # of the change: estimates from clocks and FLOPs are no more exact than that
_TIME, _RATE = "step_time_s", "tflops_per_gpu"
_SCALES_WITH_WORK = ("step_time_s", "counted_flops_per_step")


def explain(ours: Side, theirs: Side) -> Explanation:
    """Return the changes of the metrics, their causes, the likeliest first, and the next steps."""
    compared, found = changes(ours, theirs), contrast(ours, theirs)
    changed = {change.metric: change for change in compared}
    each = [_cause(effect, here, (ours, theirs), changed) for effect, here in by_effect(found.differences)]
    # Causes whose estimate explains all of a change, then those that can explain one; else the table's order.
    ordered = sorted(each, key=lambda cause: (all(fit.fit != "all" for fit in cause.says), not cause.can_explain))
    causes = tuple(cause.model_copy(update={"rank": rank}) for rank, cause in enumerate(ordered, 1))
    built = tuple(why.removeprefix("suspect: ") for why in ours.caveats if BUILT_OTHERWISE in why)
    steps = advice(compared, causes, is_published=theirs.kind == "published") if ours.kind == "run" else ()
    return Explanation(
        run=ours,
        reference=theirs,
        metrics=compared,
        verdict=built or verdict(compared, causes),
        causes=causes,
        same=dict(found.same),
        not_recorded=found.not_recorded,
        advice=(_FIND_COMMIT,) if built else steps,
    )


def _cause(
    effect: Effect, differences: tuple[Difference, ...], sides: tuple[Side, Side], changed: dict[str, Change]
) -> Cause:
    """Throughput is judged, too, if only throughput is known on both sides."""
    moves, known = effect.moves, {name for name, change in changed.items() if change.change is not None}
    if _TIME in moves and _TIME not in known and _RATE in known:
        moves = (*moves, _RATE)
    estimate = effect.estimate(*sides)
    fits = tuple(_metric_fit(metric, estimate, changed.get(metric)) for metric in moves)
    return Cause.of(effect, differences=differences, says=fits)


def _metric_fit(metric: str, estimate: Estimate | None, change: Change | None) -> MetricFit:
    expected = estimate.step_time if estimate and metric in _SCALES_WITH_WORK else None
    basis = f"{estimate.text}: " if estimate and expected is not None else ""
    if change is None or change.change is None:
        made = "" if expected is None else f"up to {format_percent(expected)}; "
        return MetricFit(metric, "unmeasured", f"{basis}{made}not measured on both sides", expected)
    if not moved(change) or (change.is_noise and expected is None):
        return MetricFit(metric, "nothing", "no change to explain", expected)
    fit, text = _fit(change.change, expected)
    return MetricFit(metric, fit, basis + text, expected)


def _fit(measured: float, expected: float | None) -> tuple[Fit, str]:
    change = format_percent(measured)
    if expected is None:
        return "possible", f"may explain {change}; no estimate"
    if expected * measured <= 0:
        makes = "no change" if expected == 0 else "a rise" if expected > 0 else "a fall"
        return "no", f"cannot explain it: it predicts {makes}, but the change is {change}"
    if abs(expected) >= _ALL * abs(measured):
        return "all", f"up to {format_percent(expected)}, enough to explain the measured {change}"
    return "part", f"up to {format_percent(expected)}, a part of the measured {change}"
