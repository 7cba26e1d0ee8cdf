"""Offers fixes, the first to try first."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.diagnose.allocator import SPLITS, own_settings, replaced_by
from harness.diagnose.commands import allocator_line, ask_again, changed, command
from harness.diagnose.stages import expected, unexplained_bytes
from harness.diagnose.values import (
    AllocatorAnswer,
    Case,
    Change,
    Fix,
    Outlook,
    Recognised,
    Rulings,
)
from harness.foreign.exporting import ToPaste, to_paste
from harness.launch.environment_rows import EXPANDABLE_SEGMENTS
from harness.units import GIB, format_bytes, format_percent, sentence

_NAN = "With FP8 and recompute: recompute core_attn only. If the loss is still not finite, try bf16."


@dataclass(frozen=True)
class Situation:
    """Everything that fixes depend on. ``doubt``: the rules by which the settings as given cannot be the job's."""

    case: Case
    oom_class: str
    symptoms: tuple[Recognised, ...]
    outlook: Outlook | None
    rulings: Rulings
    allocator: AllocatorAnswer | None = None
    doubt: str = ""

    @property
    def plan(self) -> Outlook | None:
        return None if self.outlook and self.outlook.fits_already else self.outlook


def fixes(known: Situation) -> tuple[Fix, ...]:
    """Return every fix that applies, in the order of the table; if there is none, the next experiment of the class."""
    changes = known.plan.changes if known.plan else ()
    is_sized = bool(changes and changes[0].sizes)  # a smaller micro-batch helps whatever the moment holds
    offers = sorted(_OFFERS, key=lambda offer: is_sized and offer is _of_moment)
    found = [fix for offer in offers for fix in offer(known)]
    return tuple(dict.fromkeys(found or _last_resort(known)))


def _settings(known: Situation) -> list[Fix]:
    case = known.case
    if known.doubt:
        text = f"The job cannot have run with the settings as given: {known.doubt}. Pass the settings that it ran with."
        return [] if case.status == "ok" else [Fix(text)]
    is_capacity = known.oom_class == "capacity" and case.verdict.recompute_helps
    line = ask_again(case) if is_capacity and case.spec is None else ""
    text = "Give the job's settings in place of the capitals. The planner then names the cheapest setting that fits:"
    return [Fix(text, line)] if line else []


_FAR = 0.25  # of what the rank needed. The worst error of results/accuracy is 20 %.


def _of_another_job(known: Situation) -> list[Fix]:
    found = expected(known.case)
    if known.plan is None or known.oom_class != "capacity" or found.stage is None or not found.needed_bytes:
        return []
    if (found.unexplained_bytes or 0) <= _FAR * found.needed_bytes:
        return []
    sizes = f"{format_bytes(found.stage.total)} are predicted, and the rank needed {format_bytes(found.needed_bytes)}"
    return [Fix(f"Check that the settings given are those of this job: {sizes}.")]


def _of_moment(known: Situation) -> list[Fix]:
    """Offer what the moment or the size of the request asks for, but for what the job has, before other recompute."""
    verdict, spec = known.case.verdict, known.case.spec
    if known.oom_class != "capacity" or not verdict.advice or not verdict.recompute_helps:
        return []
    has = ", --use-distributed-optimizer" if spec and spec.optimizer.use_distributed_optimizer else ""
    return [Fix(verdict.advice.replace(has, ""))]


def _allocator(known: Situation) -> list[Fix]:
    case, answer = known.case, known.allocator
    is_needed = answer.remedy != "less_memory" if answer and answer.trials else known.oom_class == "fragmentation"
    if not is_needed or case.is_on_cpu:
        return []
    if case.pools or (answer and answer.remedy == "max_split_size_mb"):
        why = f"Leave out expandable segments, which do not work beside {case.pools}. " if case.pools else ""
        if settings := answer.settings if answer else SPLITS[-1]:
            return [Fix(f"{why}Try a split size. Change nothing else.", allocator_line(case, settings))]
        return [Fix(f"{why}Use less memory.")]
    if case.expandable_segments:
        text = "Expandable segments were already on. A snapshot shows which tensors fragment the memory."
        return [Fix(text, command(case, "run", "--snapshot_on_oom"))] * case.verdict.has_activations
    unknown = " Keep the variable's other parts. With CUDA graphs, also set NCCL_GRAPH_REGISTER=0."
    settings = replaced_by(own_settings(case) if case.spec else "", EXPANDABLE_SEGMENTS)
    text = f"Try expandable segments first. Change nothing else.{unknown * (not case.spec)}"
    return [Fix(text, allocator_line(case, settings))]


def _own_limit(known: Situation) -> list[Fix]:
    limit = known.case.spec.measure.memory_limit_bytes if known.case.spec else None
    if limit is None or known.oom_class != "self_imposed_limit":
        return []
    size = f"{limit / GIB:.6g}"
    text = f"Raise --memory_limit {size}. Or see which settings are predicted to fit into it:"
    return [Fix(text, command(known.case, "plan", "--fit_into", size))]


def _planned(known: Situation) -> list[Fix]:
    case, outlook = known.case, known.plan
    if outlook is None or not case.fills_device:
        return []
    if outlook.problem:
        return [Fix(f"No change was planned: {outlook.problem}")]
    found = [_change(case, outlook, change, known.rulings) for change in outlook.changes]
    legal = [fix for fix, change in zip(found, outlook.changes, strict=True) if fix.command or not change.sizes]
    starts = ("Cheapest change predicted to fit into", *(["Also predicted to fit into"] * len(legal)))
    named = [replace(fix, text=f"{start} {fix.text}") for fix, start in zip(legal, starts, strict=False)]
    if not named:
        return [_spread(case, outlook)]
    return [replace(named[0], text=named[0].text + _summed(case, outlook)), *named[1:]]


def _summed(case: Case, outlook: Outlook) -> str:
    more, whole, limit = unexplained_bytes(case) or 0, case.capacity_bytes, outlook.budget_bytes
    if more <= 0 or not whole or not limit:
        return ""
    device, unexplained, rest = map(format_bytes, (whole, more, whole - more - limit))
    return f" The limit is {device} - {unexplained} unexplained - {rest} outside the allocator and as margin."


def _change(case: Case, outlook: Outlook, change: Change, rulings: Rulings) -> Fix:
    cost = "" if change.overhead is None else f", {format_percent(change.overhead)} {change.cost}"
    what = change.text(case.spec.recompute.text if case.spec else "")
    text = f"{format_bytes(outlook.budget_bytes or 0)}: {what}, peak {format_bytes(change.peak_bytes)}{cost}."
    if case.spec is None:
        return Fix(text)
    asked = {**change.settings, "recompute": change.recompute}
    spec = changed(case.spec, asked)
    if refusal := rulings.refusal(spec):
        return Fix(f"{text} The rules refuse it here: {refusal}.")
    return Fix(text, command(case, "run", change=asked), to_paste(spec, case.spec))


def _spread(case: Case, outlook: Outlook) -> Fix:
    what = "No change of recompute, micro-batch or layout is predicted to fit into"
    budget = f"{format_bytes(outlook.budget_bytes or 0)}.{_summed(case, outlook)}"
    text = f"{what} {budget} Use more GPUs, or search all layouts:"
    into = ("--fit_into", f"{outlook.capacity_bytes / GIB:.4g}") if outlook.capacity_bytes else ()
    return Fix(text, command(case, "plan", *into, "--search"))


def _next_of_class(known: Situation) -> list[Fix]:
    case = known.case
    of_class = known.oom_class in ("killed", "cuda_graph_pools", "outside_allocator")
    is_other_oom = case.has_oom and not case.fills_device
    failed = case.status not in ("ok", "oom", "unknown") and not case.has_oom
    is_unknown = failed and not case.has_nan and not known.symptoms
    return [Fix(case.verdict.next_experiment)] if of_class or is_other_oom or is_unknown else []


def _nan_setting(known: Situation) -> ToPaste | None:
    spec = known.case.spec
    if spec is None or "fp8" not in spec.compute_dtype or spec.recompute.text in ("none", "core_attn"):
        return None
    after = changed(spec, {"recompute": "core_attn"})
    return None if known.rulings.refusal(after) else to_paste(after, spec)


def _of_refusals(known: Situation) -> list[Fix]:
    case = known.case
    if case.spec is None or case.has_oom or not case.has_given_settings:
        return []
    return [Fix(f"{finding.id}: {finding.fix.removesuffix('.')}.") for finding in known.rulings.job]


_OFFERS: tuple[Callable[[Situation], list[Fix]], ...] = (
    _of_another_job,
    _allocator,
    _of_moment,
    _settings,
    _own_limit,
    _planned,
    _next_of_class,
    lambda known: [Fix(f"{sentence(row.fix).removesuffix('.')}.") for row in known.symptoms],
    _of_refusals,
)


def _last_resort(known: Situation) -> list[Fix]:
    case = known.case
    if case.has_nan:
        own = case.verdict.advice
        return [Fix(own) if own else Fix(_NAN, setting=_nan_setting(known))]
    is_failed = known.oom_class == "capacity" or case.status not in ("ok", "unknown") or case.verdict.advice
    return [Fix(case.verdict.next_experiment)] if is_failed else []
