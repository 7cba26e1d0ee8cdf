"""From facts to the answer: kind of failure, evidence, next experiment, in the order in which they are to be tried."""

from harness.analysis.diagnosis.commands import command, trial_command
from harness.analysis.diagnosis.outlook import Outlook
from harness.analysis.diagnosis.seen_in_memory import is_device_oom
from harness.analysis.diagnosis.seen_in_speed import loss_of_speed
from harness.analysis.diagnosis.stages import stage_evidence, unexplained_bytes
from harness.analysis.diagnosis.symptom import Facts
from harness.analysis.diagnosis.symptoms import recognised
from harness.analysis.diagnosis.trial import Trial
from harness.analysis.diagnosis.values import Case, Diagnosis, Fix, Recognised
from harness.analysis.oom.verdict import Confidence
from harness.units import GIB, format_bytes, format_percent

_ALLOCATOR_FIRST = "rank_out_of_memory_beside_headroom"  # its fix is the A/B, which comes first anyway
_EXPORT = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def diagnose(
    case: Case, reference: Case | None = None, outlook: Outlook | None = None, trial: Trial | None = None
) -> Diagnosis:
    """The answer on ``case``; ``reference`` is another job to hold it against."""
    facts = Facts(case, reference)
    symptoms = recognised(facts)
    oom_class, confidence, reason = _class(case, trial, symptoms)
    return Diagnosis(
        case=case,
        oom_class=oom_class,
        confidence=confidence,
        reason=reason,
        evidence=_evidence(facts, trial, outlook),
        symptoms=symptoms,
        fixes=_fixes(case, oom_class, symptoms, outlook, trial),
        reference=reference,
        confirmed=trial.confirmed if trial else None,
        is_conclusive=bool(symptoms)
        or case.failed is not None
        or case.status == "ok"
        or case.has_oom
        or case.has_nan
        or trial is not None,
    )


def _class(case: Case, trial: Trial | None, symptoms: tuple[Recognised, ...]) -> tuple[str, Confidence, str]:
    verdict = case.verdict
    if trial is not None and trial.confirmed is True:
        return "fragmentation", "high", f"{verdict.reason}; an A/B confirmed it"
    if trial is not None and trial.confirmed is False and verdict.oom_class == "fragmentation":
        return "capacity", "medium", f"it is no fragmentation, as an A/B showed: {verdict.reason}"
    if verdict.oom_class == "not_oom" and case.status not in ("ok", "oom") and symptoms:
        return "not_oom", "high" if case.failed else "medium", symptoms[0].cause
    if verdict.oom_class == "not_oom" and case.failed is None and case.has_nan:
        return "not_oom", "high", "the loss is not finite"
    return verdict.oom_class, verdict.confidence, verdict.reason


def _evidence(facts: Facts, trial: Trial | None, outlook: Outlook | None) -> tuple[str, ...]:
    case = facts.case
    told = [trial.told] if trial else []
    if facts.reference is not None:
        told += _against(facts)
    if case.has_oom or case.status == "ok":
        told += stage_evidence(case)
    if outlook and outlook.fits_already and is_device_oom(case):
        more = unexplained_bytes(case) or 0
        beside = f", and {format_bytes(more)} unexplained beside them" if more > 0 else ""
        told.append(f"The settings are predicted to fit as they are{beside}.")
    if case.retried and is_device_oom(case):
        told.append("The allocator had to give back cached blocks and try again before (num_alloc_retries above 0).")
    return tuple(told)


def _against(facts: Facts) -> list[str]:
    case, reference, lost = facts.case, facts.reference, loss_of_speed(facts)
    assert reference is not None
    told = []
    if lost is not None:
        told.append(
            f"{case.tflops_per_gpu:.1f} TFLOP/s/GPU against {reference.tflops_per_gpu:.1f} of {reference.name} "
            f"({format_percent(-lost)})."
        )
    if case.peak_bytes is not None and reference.peak_bytes is not None:
        change = format_percent(case.peak_bytes / reference.peak_bytes - 1)
        told.append(
            f"Peak {format_bytes(case.peak_bytes)} against {format_bytes(reference.peak_bytes)} ({change})"
            f"{', cut short where memory ran out' if case.has_oom or reference.has_oom else ''}."
        )
    return told


def _fixes(
    case: Case, oom_class: str, symptoms: tuple[Recognised, ...], outlook: Outlook | None, trial: Trial | None
) -> tuple[Fix, ...]:
    """The allocator first, because it costs no time; then the cheapest change that fits; then what symptoms say."""
    fixes = []
    if trial is not None and trial.confirmed:
        fixes.append(Fix("Keep expandable segments on; nothing else has to change.", _EXPORT))
    elif oom_class == "fragmentation":
        fixes.append(_try_allocator(case))
    if is_device_oom(case) and not (trial and trial.confirmed):
        fixes += _planned(case, outlook)
    if (not is_device_oom(case) and case.has_oom) or oom_class in ("killed", "cuda_graph_pools", "outside_allocator"):
        fixes.append(Fix(case.verdict.next_experiment))
    tried = {_ALLOCATOR_FIRST} if oom_class == "fragmentation" else set()
    fixes += [Fix(_sentence(row.fix)) for row in symptoms if row.id not in tried]
    if not fixes and case.has_nan:
        fixes.append(Fix("With FP8 and recompute: recompute core_attn only; if it stays, try bf16."))
    if not fixes and oom_class == "capacity":
        fixes.append(Fix(case.verdict.next_experiment))
    if not fixes and case.status not in ("ok", "unknown"):
        fixes.append(Fix(case.verdict.next_experiment))
    return tuple(dict.fromkeys(fixes))


def _try_allocator(case: Case) -> Fix:
    if case.expandable_segments:
        told = "Expandable segments were on already: a snapshot of the allocator shows what keeps the pieces apart."
        return Fix(told, command(case, "run", "--snapshot_on_oom"))
    text = "Only an A/B proves it: the same job without and with expandable segments, nothing else changed."
    if case.spec is None:
        graphs = " With CUDA graphs also NCCL_GRAPH_REGISTER=0."
        return Fix(f"{text}{graphs} Then: mbr-perf diagnose THIS --against THAT", _EXPORT)
    return Fix(text, trial_command(case))


def _planned(case: Case, outlook: Outlook | None) -> list[Fix]:
    if outlook is None:
        return []
    if outlook.problem:
        return [Fix(f"No change was planned: {outlook.problem}")]
    budget = format_bytes(outlook.budget_bytes or 0)
    if outlook.fits_already:
        return []
    change = outlook.change
    if change is None:
        told = f"No recompute setting is predicted to fit into {budget}: spread the model (PP before TP: it costs less time)."
        if case.spec is None:
            return [Fix(told)]
        if case.spec.cuda_graph.impl != "none":
            told += " With --cuda_graph_impl none more settings are legal."
        pipelines = case.spec.parallelism.pipeline_model_parallel_size
        into = f"{(outlook.budget_bytes or 0) / GIB:.4g}"
        over = command(case, "plan", "--fit_into", into, "--over", f"pp={pipelines},{2 * pipelines}")
        return [Fix(told, over)]
    cost = "" if change.overhead is None else f", {format_percent(change.overhead)} {change.cost} against no recompute"
    graphs = next((value for name, value in change.changes if name == "cuda_graph_impl"), None)
    without = " without CUDA graphs" if graphs else ""
    tight = " (tight)" if change.verdict != "FITS" else ""
    told = f"Cheapest change predicted to fit into {budget}: recompute {change.text}{without}, peak {format_bytes(change.peak_bytes)}{tight}{cost}."
    more = unexplained_bytes(case)
    if more is not None and more > 0:
        told += " What is unexplained is taken off."
    return [Fix(told, command(case, "run", recompute=change.text, graphs=graphs))]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
