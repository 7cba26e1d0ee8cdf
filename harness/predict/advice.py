"""What to try, cheapest first: allocator, modules, whole layers, no CUDA graphs, other offloading, parallelism."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from harness.experiment.recompute import FullRecompute, SelectiveRecompute, canonical_text
from harness.launch.environment_rows import EXPANDABLE_SEGMENTS
from harness.predict.allocator_settings import asked_settings
from harness.predict.assumptions import WIDENED_MOMENTS
from harness.predict.draws import NUM_DRAWS
from harness.predict.prediction import Prediction
from harness.predict.ranges import cost_error
from harness.predict.reserved import not_composed
from harness.predict.search import SAME_COST, Plan, Row, cost_of, recommended
from harness.units import GIB, format_bytes, format_percent, format_seconds

Step = Literal["allocator", "modules", "layers", "graphs", "offloading", "parallelism"]

WITHOUT_GRAPHS = "without CUDA graphs (--cuda_graph_impl none)"
_SPREAD = "more pipeline or tensor parallelism (--search tries all layouts, --over pp=... tp=... some), or more GPUs"
_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


@dataclass(frozen=True)
class ModuleWorth:
    """One setting of modules compared with no recompute. ``seconds_per_byte`` None: it frees nothing."""

    text: str
    saved_bytes: int
    extra_s: float | None
    extra_flops: int

    @property
    def price(self) -> float:
        """Return the seconds (FLOPs if no seconds are predicted) per freed byte; infinite if it frees nothing."""
        cost = self.extra_flops if self.extra_s is None else self.extra_s
        return cost / self.saved_bytes if self.saved_bytes > 0 else float("inf")


@dataclass(frozen=True)
class Advice:
    """One step of the ladder. ``settles``: whether it is enough by itself. ``helps`` False: no setting fits with it."""

    step: Step
    text: str
    settles: bool
    helps: bool = True


def module_worths(plan: Plan) -> tuple[ModuleWorth, ...]:
    """Return the worth of each single module, the cheapest per byte of the peak; of the need, with graphs' pools."""
    control = plan.control
    if control is None or control.prediction is None:
        return ()
    worths, is_captured = [], plan.spec.cuda_graph.impl != "none"
    for row in plan.rows:
        policy = row.candidate.spec.recompute
        if row.prediction is None or not isinstance(policy, SelectiveRecompute) or len(policy.modules) > 1:
            continue
        now, before = row.prediction, control.prediction
        extra = now.time.likely_s - before.time.likely_s if now.time and before.time else None
        saved = before.fits[1] - now.fits[1] if is_captured else before.peak_bytes - now.peak_bytes
        worths.append(ModuleWorth(row.text, saved, extra, now.recompute_flops - before.recompute_flops))
    return tuple(sorted(worths, key=lambda worth: worth.price))


def advice(plan: Plan) -> tuple[Advice, ...]:
    """Return the steps from the control to the first sufficient one; empty if nothing is judged or needed."""
    control = plan.control
    if control is None or control.prediction is None or plan.limits.budget_bytes is None or control.verdict == "FITS":
        return ()
    allocator = [] if plan.spec.gpu_type.is_cpu else [_allocator(plan, control)]
    layers = _step(plan, "layers", FullRecompute, "the fewest sufficient whole layers")
    steps = [*allocator, _modules(plan), layers, *_graphs(plan), *_offloading(plan)]
    return (*steps, _parallelism(plan)) if not any(step.settles for step in steps) else tuple(steps)


def why_none(plan: Plan) -> str:
    """Say why no setting is recommended; empty if one is."""
    limits = plan.limits
    if plan.recommended is not None:
        return ""
    if limits.capacity_bytes is None:
        return "the memory of this GPU is unknown (set it with --fit_into GIB)"
    if not any(row.prediction for row in plan.rows):
        return "no setting could be predicted"
    if plan.too_dear is not None:
        cost = "an unknown share" if plan.too_dear.overhead is None else format_percent(plan.too_dear.overhead)
        return f"settings fit, but cost more than {_allowed(plan)}: the cheapest is {plan.too_dear.label} at {cost}"
    nothing = f"nothing fits into the {limits.usable_text} usable"
    others = [*(("--cuda_graph_impl none", row) for row in (eager(plan),) if row), *_offloaded(plan)]
    return f"{nothing}; with {others[0][0]} the setting {others[0][1].label} fits" if others else nothing


def safe_instead(plan: Plan) -> str:
    """Name a setting that fits with its whole range, if the recommended one does not; else empty."""
    if plan.recommended is None or plan.safe is not None:
        return ""
    other = eager(plan)
    instead = f"; {WITHOUT_GRAPHS} the setting {other.label} does{_at(_as_here(plan, other))}" if other else ""
    return f"no planned setting fits with its whole range{instead}"


def recommendations(plan: Plan) -> tuple[Row, ...]:
    """The settings that the answer advises.

    With another setting of the allocator, recommended, without CUDA graphs if none is safe with them, riskier.
    """
    return tuple(row for row in (plan.cure, plan.recommended, eager(plan), plan.riskier) if row)


def cheapest_saving(plan: Plan) -> Row | None:
    """Return the setting that saves memory for the least time per byte, compared with the recommended one."""
    if plan.recommended is None:
        return None
    cost, peak = cost_of(plan.recommended)
    rows = [row for row in plan.rows if row.prediction and peak - cost_of(row)[1] > peak / 100]
    return min(rows, key=lambda row: (cost_of(row)[0] - cost) / (peak - cost_of(row)[1]), default=None)


def eager(plan: Plan) -> Row | None:
    """Return the setting to use without CUDA graphs; None if one fits with its whole range as it is."""
    other = plan.without_graphs
    if other is None or plan.safe is not None:
        return None
    return other.cure if other.cure and other.cure.verdict == "FITS" else other.safe


def same_time_text(plan: Plan) -> str:
    """Name the settings that are as fast as the recommended one, as far as a prediction can tell; else empty."""
    if not plan.same_time:
        return ""
    others = ", ".join(f"{row.label}{_at(row)}" for row in plan.same_time)
    error = cost_error()
    return (
        f"the same time, as far as predictions can tell: {others}; the recommended one needs or recomputes the least "
        f"(in {error.num_rows} measured cases, predicted costs err by {error.share * 100:.0f} % of the cost)"
    )


def asked_text(plan: Plan, whose: str) -> str:
    """Describe the setting of the request: ``whose`` it is, verdict, peak, time; empty if it is the recommended one."""
    own = canonical_text(plan.spec.recompute)
    row = next((row for row in plan.rows if canonical_text(row.candidate.spec.recompute) == own), None)
    if row is None or row is plan.recommended:
        return ""
    if row.prediction is None:
        return f"{whose} setting, {row.label}, is not predicted: {row.reason}"
    time = f", {format_seconds(row.prediction.time.likely_s)} a step" if row.prediction.time else ""
    need = f"needs {'' if row.prediction.is_point_known else '~'}{format_bytes(row.prediction.fits[1])}"
    verdict = row.verdict or "not judged"
    doubt = f"; {doubt_text(plan, row.prediction)}" * (row.verdict == "TIGHT")
    return f"{whose} setting, {row.label}: {verdict}, {need}{time}{_at(row)}{allocator_text(plan, row)}{doubt}"


def allocator_text(plan: Plan, row: Row) -> str:
    """Say that a setting fits due to expandable segments, with the bytes that it needs more without; empty if not."""
    if row.prediction is None or row.otherwise is None:
        return ""
    more = row.otherwise.fits[1] - row.prediction.fits[1]
    if more <= 0 or row.verdict == "OOM":
        return ""
    exceeds = row.otherwise.fits[1] > (plan.limits.budget_bytes or 0)
    return f"; without {EXPANDABLE_SEGMENTS} it {'does' if exceeds else 'may'} not fit (+{format_bytes(more)})"


def cure_text(plan: Plan) -> str:
    """Say what to use under the request's own settings of the allocator; empty without a ``cure``."""
    cure, best = plan.cure, plan.recommended
    own = next((row for row in plan.rows if cure and row.text == cure.text), None)
    if cure is None or cure.prediction is None or own is None or own.prediction is None:
        return ""
    most = f"it may need up to {format_bytes(own.prediction.fits[2])}"
    then = "nothing fits" if best is None else most if best is own else f"use {best.label}{_at(best)}"
    return f"; without it {then}"


def allocator_note(plan: Plan, *, with_late: bool) -> str:
    """Say what reserved bytes are made of, and which settings of the allocator they assume.

    ``with_late``: also what streams that run late reserve, which takes a replay.
    """
    text = asked_settings(plan.spec)[1]
    names = [row.label for row in plan.rows if row.prediction and row.prediction.reserved_source == "replayed"]
    cause = not_composed(plan.spec)
    why = f" ({cause}: no step is composed of requests)" if cause else ""
    steps = f"of replayed first steps for {' and '.join(names)}, else " if names else ""
    settings = f"with {_ALLOCATOR}={text}" if text else "without settings of torch's allocator"
    row = plan.recommended or plan.control
    late = ""
    if with_late and row and row.prediction and row.prediction.reserved[2] > row.prediction.reserved[1]:
        most = format_bytes(row.prediction.reserved[2])
        late = f"; where side streams run late, as that of Megatron-LM's DDP can, up to {most} with `{row.label}`"
    return f"Reserved and Fits: {steps}by the class of the job{why}, {settings}{late}"


def drawn_text(plan: Plan) -> Iterator[str]:
    """Say what draws of sizes that vary take, beside the table, whose sequences are whole."""
    named = (plan.recommended, plan.control, *plan.rows)
    row = next((row for row in named if row and row.prediction and row.prediction.drawn), None)
    if row and row.prediction and (found := row.prediction.drawn):
        sizes = found.fits_bytes, found.peak_bytes, found.reserved_bytes
        need, peak, reserved = (f"{low / GIB:.2f}-{high / GIB:.2f}" for low, high in sizes)
        whole = "the table has whole sequences and even routing"
        yield f"{NUM_DRAWS} draws of sizes: {row.label} needs {need} GiB (peak {peak}, reserved {reserved}); {whole}"


def unmodelled(plan: Plan) -> dict[str, str]:
    """The assumptions about unmodelled effects, each with the bytes by which it may move the recommended peak."""
    row = plan.recommended or plan.control
    if row is None or row.prediction is None:
        return {}
    peak = row.prediction.peak_bytes
    return {
        each.text: " to ".join(
            f"{sign}{format_bytes(share * peak)}" for sign, share in (("-", each.lower), ("+", each.higher)) if share
        )
        for each in row.prediction.assumptions
        if each.lower or each.higher
    }


def riskier_text(plan: Plan) -> str:
    """Name the cheaper setting that may not fit, with its odds; empty without such a setting."""
    row = plan.riskier
    if row is None or row.prediction is None or plan.cure:
        return ""
    return f"cheaper, but it may not fit: {row.label}{_at(row)} ({doubt_text(plan, row.prediction)})"


def doubt_text(plan: Plan, tight: Prediction) -> str:
    """Say how far the need of a tight setting reaches, and how many of ten measured jobs of its class would fit."""
    high, num = format_bytes(tight.fits[2]), tight.num_of_ten_within(plan.limits.budget_bytes or 0)
    odds = f"about {num} of 10" if num else "fewer than 1 of 10"
    return f"it may need up to {high}; {odds} measured jobs of its class would fit"


def _allowed(plan: Plan) -> str:
    return f"the {(plan.limits.max_overhead or 0) * 100:g} % of --max_overhead"


def _allocator(plan: Plan, control: Row) -> Advice:
    """Expandable segments cost nothing and cure fragmentation, but not a peak that is too high."""
    cure, budget = plan.cure, plan.limits.budget_bytes or 0
    if cure and cure.prediction:
        need, how = format_bytes(cure.prediction.fits[1]), "fits" if cure.verdict == "FITS" else "may fit"
        text = f"{_ALLOCATOR}={EXPANDABLE_SEGMENTS}: {cure.text} {how}{_at(cure)}, {need} are then needed"
        return Advice("allocator", text, settles=cure.verdict == "FITS")
    is_set = asked_settings(plan.spec)[0].expandable_segments
    found, known = control.prediction, control.prediction if is_set else control.otherwise
    assert found
    if found.peak_bytes > budget:
        text = "the predicted peak alone does not fit"
    elif known is None:
        text = f"the upper end of the peak, {format_bytes(found.range_bytes[1])}, does not fit"
    elif known.fits[1] > budget:
        captured = " (a capture of a CUDA graph gives no cached memory back)" * (plan.spec.cuda_graph.impl != "none")
        text = f"{format_bytes(known.fits[1])} are needed{captured}"
    else:
        text = "the {} needed fit, the upper end, {}, does not".format(*map(format_bytes, known.fits[1:]))
    have = " (already set)" * is_set
    return Advice(
        "allocator",
        f"{_ALLOCATOR}={EXPANDABLE_SEGMENTS}{have} is not enough: without recompute {text}",
        settles=False,
        helps=False,
    )


def _modules(plan: Plan) -> Advice:
    worths = module_worths(plan)
    ranked = [worth.text for worth in worths if worth.saved_bytes > 0]
    if ranked:
        order = f"cheapest per GiB freed first: {', '.join(ranked)}"
    else:
        order = f"{', '.join(worth.text for worth in worths)}: none frees memory" if worths else "no price known"
    return _step(plan, "modules", SelectiveRecompute, order)


def _step(plan: Plan, step: Step, kind: type[SelectiveRecompute | FullRecompute], order: str) -> Advice:
    """Return the cheapest fitting setting of one kind. It settles the ladder if it is the recommended one."""
    rows = tuple(row for row in plan.rows if isinstance(row.candidate.spec.recompute, kind))
    best = plan.recommended
    fitting = best if any(row is best for row in rows) else recommended(rows, plan.limits)
    if fitting is None or fitting.verdict != "FITS":
        dear = recommended(rows, replace(plan.limits, max_overhead=None))
        if dear is not None and dear.verdict == "FITS":
            text = f"{dear.text} fits{_at(dear)}, but that is more than {_allowed(plan)}"
            return Advice(step, f"{step}: {text} ({order})", settles=False)
        if not any(row.prediction for row in rows):
            return Advice(step, f"{step}: {_why_unplanned(rows)}", settles=False, helps=False)
        return Advice(step, f"{step}: no planned setting fits", settles=False, helps=False)
    cost = _at(fitting)
    is_best = plan.recommended is not None and fitting.text == plan.recommended.text
    return Advice(step, f"{step}: {fitting.text} fits{cost} ({order})", settles=is_best)


def _why_unplanned(rows: tuple[Row, ...]) -> str:
    if not rows:
        return "no setting was planned"
    reasons = dict.fromkeys(rule for row in rows for rule in row.candidate.rules)
    return f"no setting is legal ({', '.join(reasons)})" if reasons else "no setting could be traced"


def _graphs(plan: Plan) -> tuple[Advice, ...]:
    other = plan.without_graphs
    if other is None:
        return ()
    best = other.cure or other.recommended
    if best is None or best.verdict != "FITS":
        why = why_none(other) or "no setting fits either"
        return (Advice("graphs", f"{WITHOUT_GRAPHS}: {why}", settles=False, helps=False),)
    text = f"{WITHOUT_GRAPHS}: the setting {best.label} fits{_at(_as_here(plan, best))}"
    return (Advice("graphs", text, settles=plan.recommended is None),)


def _offloaded(plan: Plan) -> list[tuple[str, Row]]:
    """Return other numbers of offloaded layers, as options, with the setting that then fits, the cheapest first."""
    plans = ((each.spec.offload.cpu_offloading_num_layers, each.safe) for each in plan.other_offloading)
    rows = [(f"-ol {num}", _as_here(plan, row)) for num, row in plans if row]
    return sorted(rows, key=lambda each: cost_of(each[1]))


def _offloading(plan: Plan) -> Iterator[Advice]:
    for option, row in _offloaded(plan):
        need = format_bytes(row.prediction.fits[1]) if row.prediction else ""
        yield Advice("offloading", f"{option}: the setting {row.label} fits{_at(row)}, {need} are needed", settles=True)


def _at(row: Row) -> str:
    return "" if row.overhead is None else f" at {format_percent(row.overhead)}"


def _as_here(plan: Plan, row: Row) -> Row:
    """Return a setting of another plan with its cost beside the step of this one without recompute."""
    return row.compared_with(plan.control.prediction if plan.control else None)


def _parallelism(plan: Plan) -> Advice:
    predicted = [row.prediction for row in plan.rows if row.prediction]
    least = min(predicted, key=lambda found: found.peak_bytes)
    floor = max(least.stages, key=lambda stage: stage.peaks["optimizer step"])
    budget = plan.limits.budget_bytes or 0
    if (size := floor.peaks["optimizer step"]) > budget or least.worst.peak == "optimizer step":
        how = "alone exceeds the memory" if size > budget else f"is the peak, {format_bytes(size)}"
        why = f"the optimizer step of stage {floor.pp_rank} {how}, and recompute does not lower it"
        if WIDENED_MOMENTS in least.assumptions:
            why += " (transformer-engine 2.13 does: plan it with --assume transformer-engine=2.13)"
    elif plan.too_dear is not None:
        why = f"settings that fit cost more than {_allowed(plan)}: raise the limit, or use"
        return Advice("parallelism", f"{why} {_SPREAD}", settles=False)
    else:
        why = "activations are too large for this layout"
    return Advice("parallelism", f"{why}: {_SPREAD}", settles=False)


# Peaks that no table shows apart: a thousandth, at most 50 MB.
_SAME_BYTES, _SAME_SHARE = 50_000_000, 1000


def dominated(rows: tuple[Row, ...]) -> frozenset[str]:
    """Return the settings that another beats: visibly neither dearer nor larger, and better in one or simpler."""
    known = [(place, *cost_of(row)) for place, row in enumerate(rows) if row.prediction]
    return frozenset(
        rows[place].text for place, cost, peak in known if any(_beats(other, (place, cost, peak)) for other in known)
    )


def _beats(first: tuple[int, float, int], second: tuple[int, float, int]) -> bool:
    """Return whether ``first`` beats ``second``; both are (place in order of simplicity, cost, peak)."""
    cheaper, smaller = second[1] - first[1], second[2] - first[2]
    same_bytes = min(_SAME_BYTES, second[2] // _SAME_SHARE)
    if cheaper < -SAME_COST or smaller < -same_bytes:
        return False
    return cheaper > SAME_COST or smaller > same_bytes or first[0] < second[0]
