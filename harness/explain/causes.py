"""Explains a difference: which causes can account for it."""

import math
from collections.abc import Sequence

from harness.explain.contrast import contrast
from harness.explain.effects import by_effect
from harness.explain.values import Cause, Change, Explanation, Side
from harness.records.metrics import BY_NAME, METRICS, SUMMARY_METRICS, Metric
from harness.records.run import BUILT_OTHERWISE

# A smaller change needs no explanation, whatever its noise.
NOTHING = 0.002
_TWO_SIGMA = 2.0
_FIND_COMMIT = "find the commit: mbr-perf bisect RUN --metric recompute --good REV --bad REV --repo FOLDER"
_TIME, _RATE = "step_time_s", "tflops_per_gpu"


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
    return Change(metric.name, here, there, (here - there) / there, _noise(metric, ours, theirs))


def _noise(metric: Metric, ours: Side, theirs: Side) -> float | None:
    """Return the difference that 19 of 20 pairs of equal runs stay within; on a CPU, that of its thresholds."""
    spread = max(side.spreads.get(metric.name, -1) for side in (ours, theirs))
    if spread >= 0:
        return _TWO_SIGMA * spread * math.sqrt(1 / ours.num_runs + 1 / theirs.num_runs)
    if metric.gate == "exact":
        return 0.0
    row = ours.spec.gpu_type if ours.spec else None
    if row is None or not row.is_cpu:
        return None
    return row.memory_threshold if metric.unit == "bytes" else row.timing_threshold


def verdict(changes: Sequence[Change]) -> tuple[str, ...]:
    """Say what is not known of the changes."""
    if all(change.change is None for change in changes):
        return ("No metric has a value on both sides, so the list shows only what differs.",)
    unknown = ", ".join(BY_NAME[each.metric].title for each in changes if moved(each) and each.noise is None)
    return (f"{unknown}: the noise is unknown, because neither side has repeats.",) if unknown else ()


def advice(changes: Sequence[Change], causes: Sequence[Cause], *, is_published: bool) -> tuple[str, ...]:
    """Return the next steps; none if no metric changed. ``is_published``: the reference is a published figure."""
    changed = [change for change in changes if moved(change)]
    able = [cause.name for cause in causes if cause.can_explain]
    is_unsure = any(change.is_noise or change.noise is None for change in changed)
    steps = (
        (is_unsure, "repeat the run at least three times, and compare with --repeat (nightly: --confirm)"),
        (bool(able), f"remove one difference at a time, beginning with: {''.join(able[:1])}"),
        (not able, "repeat the run on another node"),
        (is_published, "promote a golden of your own runs: a published figure does not state all settings"),
    )
    return tuple(text for applies, text in steps if applies and changed)


def explain(ours: Side, theirs: Side) -> Explanation:
    """Return changes, causes and next steps. Throughput counts where only it is known on both sides."""
    compared, (differences, not_recorded) = changes(ours, theirs), contrast(ours, theirs)
    open_changes = {each.metric for each in compared if moved(each) and not each.is_noise}
    has_time = any(each.metric == _TIME and each.change is not None for each in compared)
    each = []
    for effect, here in by_effect(differences):
        moves = (*effect.moves, _RATE) if _TIME in effect.moves and not has_time else effect.moves
        each.append(Cause.of(effect, differences=here, explains=tuple(filter(open_changes.__contains__, moves))))
    ordered = sorted(each, key=lambda cause: not cause.can_explain)
    causes = tuple(cause.model_copy(update={"rank": rank}) for rank, cause in enumerate(ordered, 1))
    built = tuple(why.removeprefix("suspect: ") for why in ours.caveats if BUILT_OTHERWISE in why)
    steps = advice(compared, causes, is_published=theirs.kind == "published") if ours.kind == "run" else ()
    return Explanation(
        run=ours,
        reference=theirs,
        metrics=compared,
        verdict=built or verdict(compared),
        causes=causes,
        not_recorded=not_recorded,
        advice=(_FIND_COMMIT,) if built else steps,
    )
