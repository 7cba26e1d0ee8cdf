"""Judges what failed and decides which fixes to offer."""

from collections.abc import Sequence
from dataclasses import replace

from harness.diagnose.commands import ask_again, can_be_named
from harness.diagnose.fixes import Situation, fixes, legal_line
from harness.diagnose.plan import Outlook
from harness.diagnose.seen import NOTICEABLE, Facts, is_device_oom, loss_of_speed
from harness.diagnose.stages import Trial, stage_evidence, unexplained_bytes
from harness.diagnose.symptoms import recognised
from harness.diagnose.values import NO_RULINGS, Case, Diagnosis, Fix, Recognised, Rulings, is_doubted, told
from harness.judging.oom.verdict import Confidence
from harness.units import format_bytes, format_percent


def of_speed(facts: Facts, case: Case, symptoms: Sequence[Recognised], rulings: Rulings) -> tuple[Fix, ...]:
    """``case``: the job with its settings as told, also where ``facts`` leaves them out of account."""
    lost = loss_of_speed(facts)
    if lost is None or lost <= NOTICEABLE or case.status != "ok" or case.has_nan or symptoms:
        return ()
    assert facts.reference is not None
    line, text = "", "-mr RECIPE -g GPU --recompute SETTING, as it ran, tell why."
    if is_doubted(case, rulings):
        line, text = legal_line(case, rulings), "pass the settings that it ran with, which tell why."
        if line:
            text = "pass the settings that it ran with; legal would be, without CUDA graphs:"
    elif case.spec is None and can_be_named(case):
        line, text = ask_again(case), "its settings, in place of the capitals, tell why:"
    slower = f"{case.name} is {lost:.1%} slower than {facts.reference.name}"
    if case.spec is not None and not is_doubted(case, rulings):
        return (
            Fix(f"{slower}, and no known setting explains it: see what else differs (sizes, software, GPUs, nodes)."),
        )
    return (Fix(f"{slower}: {text}", line),)


def diagnose(
    case: Case,
    reference: Case | None = None,
    outlook: Outlook | None = None,
    trial: Trial | None = None,
    rulings: Rulings = NO_RULINGS,
) -> Diagnosis:
    """The answer on ``case``; ``reference`` is another job to hold it against.

    Settings that cannot be the job's are shown and left out of account.
    """
    doubted = is_doubted(case, rulings)
    facts = Facts(replace(case, spec=None) if doubted else case, reference)
    symptoms = recognised(facts)
    oom_class, confidence, reason = _class(case, trial, symptoms)
    return Diagnosis(
        case=case,
        oom_class=oom_class,
        confidence=confidence,
        reason=reason,
        evidence=(
            *([_doubt(rulings)] if doubted and case.status == "ok" else []),
            *_evidence(facts, trial, outlook, rulings),
        ),
        symptoms=symptoms,
        fixes=(
            *fixes(Situation(case, oom_class, symptoms, outlook, trial, rulings)),
            *of_speed(facts, case, symptoms, rulings),
        ),
        reference=reference,
        confirmed=trial.confirmed if trial else None,
        is_conclusive=bool(symptoms)
        or case.failed is not None
        or case.status == "ok"
        or case.has_oom
        or case.has_nan
        or trial is not None
        or case.verdict.confidence == "high",
    )


def _doubt(rulings: Rulings) -> str:
    """Of a job that ended well: that its software or settings are not as told."""
    return (
        f"The rules refuse the settings as told: {told(rulings.job)}. The job ran all the same: it had another release of "
        "the software, another graph scope or other settings. They are left out of account."
    )


def _class(case: Case, trial: Trial | None, symptoms: tuple[Recognised, ...]) -> tuple[str, Confidence, str]:
    verdict = case.verdict
    if trial is not None and trial.confirmed is True:
        return "fragmentation", "high", f"{verdict.reason}; an A/B confirmed it"
    if trial is not None and trial.confirmed is False and verdict.oom_class == "fragmentation":
        return "capacity", "medium", f"it is no fragmentation, as an A/B showed: {verdict.reason}"
    said = next((row for row in symptoms if row.is_said or (case.has_nan and case.failed is None)), None)
    if verdict.oom_class == "not_oom" and case.status not in ("ok", "oom") and said is not None:
        return "not_oom", "high" if case.failed else "medium", said.cause
    if verdict.oom_class == "not_oom" and case.failed is None and case.has_nan:
        return "not_oom", "high", "the loss is not finite"
    return verdict.oom_class, verdict.confidence, verdict.reason


def _evidence(facts: Facts, trial: Trial | None, outlook: Outlook | None, rulings: Rulings) -> tuple[str, ...]:
    case = facts.case
    found = [trial.told] if trial else []
    if rulings.job and case.spec is not None and not case.forced:
        found.append(f"The rules refuse the job's settings: {told(rulings.job)}.")
    if facts.reference is not None:
        found += _against(facts)
    if case.has_oom or case.status == "ok":
        found += stage_evidence(case)
    if outlook and outlook.fits_already and is_device_oom(case):
        more = unexplained_bytes(case) or 0
        beside = f", and {format_bytes(more)} unexplained beside them" if more > 0 else ""
        found.append(f"The settings are predicted to fit as they are{beside}.")
    if case.retried and is_device_oom(case):
        found.append("The allocator had to give back cached blocks and try again before (num_alloc_retries above 0).")
    return tuple(found)


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
