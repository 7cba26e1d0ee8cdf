"""What to try, cheapest first: allocator, modules, whole layers, no CUDA graphs, parallelism."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from harness.experiment.recompute import FullRecompute, SelectiveRecompute, canonical_text
from harness.launch.environment_rows import EXPANDABLE_SEGMENTS
from harness.predict.allocator_settings import asked_settings
from harness.predict.draws import NUM_DRAWS
from harness.predict.prediction import Prediction
from harness.predict.ranges import cost_error
from harness.predict.search import Plan, Row, cost_of, recommended
from harness.units import GIB, format_bytes, format_percent, format_seconds

Step = Literal["allocator", "modules", "layers", "graphs", "parallelism"]

WITHOUT_GRAPHS = "without CUDA graphs (--cuda_graph_impl none)"
_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


@dataclass(frozen=True)
class ModuleWorth:
    """One setting of modules compared with no recompute."""

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
    if control is None or plan.limits.budget_bytes is None or control.verdict == "FITS":
        return ()
    order = ", ".join(worth.text for worth in module_worths(plan) if worth.saved_bytes > 0) or "none frees memory"
    steps = [] if plan.spec.gpu_type.is_cpu else [_allocator(plan)]
    steps.append(_step(plan, "modules", SelectiveRecompute, f"cheapest per GiB freed first: {order}"))
    steps.append(_step(plan, "layers", FullRecompute, "the fewest sufficient whole layers"))
    if plan.without_graphs:
        steps.append(_graphs(plan, plan.without_graphs))
    if any(step.settles for step in steps):
        return tuple(steps)
    more = "more pipeline or tensor parallelism (--search tries all layouts, --over pp=... tp=... some), or more GPUs"
    return (*steps, Advice("parallelism", more, settles=False))


def cheapest_saving(plan: Plan) -> Row | None:
    """Return the setting that saves memory for the least time per byte, compared with the recommended one."""
    if plan.recommended is None:
        return None
    cost, peak = cost_of(plan.recommended)
    rows = [row for row in plan.rows if row.prediction and peak - cost_of(row)[1] > peak / 100]
    return min(rows, key=lambda row: (cost_of(row)[0] - cost) / (peak - cost_of(row)[1]), default=None)


def why_none(plan: Plan) -> str:
    """Say why no setting is recommended; empty if one is."""
    limits = plan.limits
    if plan.recommended is not None:
        return ""
    if limits.capacity_bytes is None:
        return "the memory of this GPU is unknown (set it with --fit_into GIB)"
    if not plan.predicted:
        return "no setting could be predicted"
    if plan.too_dear is not None:
        limit = f"the {(limits.max_overhead or 0) * 100:g} % of --max_overhead"
        return f"settings fit, but cost more than {limit}: the cheapest is {plan.too_dear.label}{_at(plan.too_dear)}"
    without = f"; with --cuda_graph_impl none the setting {other.label} fits" if (other := eager(plan)) else ""
    return f"nothing fits into the {limits.usable_text} usable{without}"


def safe_instead(plan: Plan) -> str:
    """Name a setting that fits with its whole range, if the recommended one does not; else empty."""
    if plan.recommended is None or plan.safe is not None:
        return ""
    instead = f"; {WITHOUT_GRAPHS} the setting {other.label} does" if (other := eager(plan)) else ""
    return f"no planned setting fits with its whole range{instead}"


def recommendations(plan: Plan) -> tuple[Row, ...]:
    """The settings that the answer advises: the cure, the recommended, without CUDA graphs, the riskier one."""
    return tuple(row for row in (plan.cure, plan.recommended, eager(plan), plan.riskier) if row)


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
    others, error = ", ".join(f"{row.label}{_at(row)}" for row in plan.same_time), cost_error()
    return f"as fast, because predicted costs err by {error.share * 100:.0f} % ({error.num_rows} measured): {others}"


def asked_text(plan: Plan) -> str:
    """Describe the setting of the request: verdict, need, time; empty if it is the recommended one."""
    own = canonical_text(plan.spec.recompute)
    row = next((row for row in plan.rows if canonical_text(row.candidate.spec.recompute) == own), None)
    if row is None or row is plan.recommended:
        return ""
    if (found := row.prediction) is None:
        return f"your setting, {row.label}, is not predicted: {row.reason}"
    time = f", {format_seconds(found.time.likely_s)} a step" if found.time else ""
    doubt = f"; {doubt_text(plan, found)}" * (row.verdict == "TIGHT")
    need = f"needs {format_bytes(found.fits[1])}{time}{_at(row)}{allocator_text(plan, row)}{doubt}"
    return f"your setting, {row.label}: {row.verdict or 'not judged'}, {need}"


def allocator_text(plan: Plan, row: Row) -> str:
    """Say that a setting fits due to expandable segments alone, with the bytes that these save; empty if not."""
    if row.prediction is None or row.otherwise is None or row.verdict == "OOM":
        return ""
    more = row.otherwise.fits[1] - row.prediction.fits[1]
    does = "does" if row.otherwise.fits[1] > (plan.limits.budget_bytes or 0) else "may"
    return f"; without {EXPANDABLE_SEGMENTS} it {does} not fit (+{format_bytes(more)})" if more > 0 else ""


def cure_text(plan: Plan) -> str:
    """Say what to use under the request's own settings of the allocator; empty without a ``cure``."""
    if plan.cure is None:
        return ""
    best = plan.recommended
    return f"; without it {f'use {best.label}{_at(best)}' if best else 'nothing fits'}"


def allocator_note(plan: Plan) -> str:
    """Say what reserved bytes are made of, and which settings of the allocator they assume."""
    names = [row.label for row in plan.predicted if row.prediction and row.prediction.reserved_source == "replayed"]
    steps = f"of replayed first steps for {' and '.join(names)}, else " if names else ""
    asked = asked_settings(plan.spec)[1] or "(unset)"
    return f"Reserved and Fits: {steps}by the class of the job, with {_ALLOCATOR}={asked}"


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
    num = tight.num_of_ten_within(plan.limits.budget_bytes or 0)
    return f"it may need up to {format_bytes(tight.fits[2])}; about {num} of 10 measured jobs of its class would fit"


def _allocator(plan: Plan) -> Advice:
    """Expandable segments cost nothing and cure fragmentation, but not a peak that is too high."""
    name, cure = f"{_ALLOCATOR}={EXPANDABLE_SEGMENTS}", plan.cure
    if cure:
        fits = "fits" if cure.verdict == "FITS" else "may fit"
        return Advice("allocator", f"{name}: {cure.text} {fits}{_at(cure)}", settles=cure.verdict == "FITS")
    is_set = " (already set)" * asked_settings(plan.spec)[0].expandable_segments
    return Advice("allocator", f"{name}{is_set} is not enough without recompute", settles=False, helps=False)


def _step(plan: Plan, step: Step, kind: type[SelectiveRecompute | FullRecompute], order: str) -> Advice:
    """Return the cheapest fitting setting of one kind. It settles the ladder if it is the recommended one."""
    rows = tuple(row for row in plan.rows if isinstance(row.candidate.spec.recompute, kind))
    best = plan.recommended
    fitting = best if any(row is best for row in rows) else recommended(rows, plan.limits)
    if fitting is None or fitting.verdict != "FITS":
        return Advice(step, f"{step} ({order}): no setting fits within the limits", settles=False, helps=False)
    return Advice(step, f"{step} ({order}): {fitting.text} fits{_at(fitting)}", settles=fitting is best)


def _graphs(plan: Plan, other: Plan) -> Advice:
    best = other.cure or other.recommended
    fits = best is not None and best.verdict == "FITS"
    what = f"the setting {best.label} fits" if best and fits else "no setting fits either"
    return Advice("graphs", f"{WITHOUT_GRAPHS}: {what}", settles=fits and plan.recommended is None, helps=fits)


def _at(row: Row) -> str:
    return "" if row.overhead is None else f" at {format_percent(row.overhead)}"
