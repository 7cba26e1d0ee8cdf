"""Judges what failed and decides which fixes to offer."""

from collections.abc import Sequence
from dataclasses import replace

from harness.diagnose.commands import ask_again, can_be_named
from harness.diagnose.fixes import Situation, fixes, legal_line
from harness.diagnose.plan import Outlook
from harness.diagnose.seen import NOTICEABLE, Facts, is_device_oom, loss_of_speed
from harness.diagnose.stages import Trial, stage_evidence, unexplained_bytes
from harness.diagnose.symptoms import recognised
from harness.diagnose.values import NO_RULINGS, Case, Diagnosis, Fix, Recognised, Rulings, findings_text, is_doubted
from harness.failures.verdict import Confidence
from harness.units import format_bytes, format_percent


def of_speed(facts: Facts, case: Case, symptoms: Sequence[Recognised], rulings: Rulings) -> tuple[Fix, ...]:
    """Offer fixes for a slow job. ``case`` has the settings as given, even if ``facts`` ignores them."""
    lost = loss_of_speed(facts)
    if lost is None or lost <= NOTICEABLE or case.status != "ok" or case.has_nan or symptoms:
        return ()
    assert facts.reference is not None
    line, text = "", "pass its settings with -mr RECIPE -g GPU --recompute SETTING to see why."
    if is_doubted(case, rulings):
        line, text = legal_line(case, rulings), "pass the settings that it ran with to see why."
        if line:
            text = "pass the settings that it ran with. Without CUDA graphs they are legal:"
    elif case.spec is None and can_be_named(case):
        line, text = ask_again(case), "replace the capitals with its settings to see why:"
    slower = f"{case.name} is {lost:.1%} slower than {facts.reference.name}"
    if case.spec is not None and not is_doubted(case, rulings):
        return (
            Fix(
                f"{slower}, and no known setting explains it. Look for other differences (sizes, software, GPUs, nodes)."
            ),
        )
    return (Fix(f"{slower}: {text}", line),)


def diagnose(
    case: Case,
    reference: Case | None = None,
    outlook: Outlook | None = None,
    trial: Trial | None = None,
    rulings: Rulings = NO_RULINGS,
) -> Diagnosis:
    """Diagnose ``case``, compared with another job, ``reference``, if there is one.

    The answer shows settings that cannot be the job's own, and ignores them.
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
        or (case.failed is not None and case.verdict.oom_class != "unknown")
        or case.status == "ok"
        or case.has_oom
        or case.has_nan
        or trial is not None
        or case.verdict.confidence == "high",
    )


def _doubt(rulings: Rulings) -> str:
    """Say that a job that ended well had other software or settings than given."""
    return (
        f"The rules refuse the settings as given: {findings_text(rulings.job)}. The job ran all the same, so it had another "
        "release of the software, another graph scope or other settings. mbr-perf ignores the settings as given."
    )


def _class(case: Case, trial: Trial | None, symptoms: tuple[Recognised, ...]) -> tuple[str, Confidence, str]:
    verdict = case.verdict
    if trial is not None and trial.confirmed is True:
        return "fragmentation", "high", f"{verdict.reason}; an A/B confirmed it"
    if trial is not None and trial.confirmed is False and verdict.oom_class == "fragmentation":
        return "capacity", "medium", f"an A/B ruled out fragmentation: {verdict.reason}"
    known = next((row for row in symptoms if row.is_said or (case.has_nan and case.failed is None)), None)
    is_open = verdict.oom_class in ("not_oom", "unknown")
    if is_open and case.status not in ("ok", "oom") and known is not None:
        return "not_oom", "high" if case.failed else "medium", known.cause
    if verdict.oom_class == "not_oom" and case.failed is None and case.has_nan:
        return "not_oom", "high", "the loss is not finite"
    return verdict.oom_class, verdict.confidence, verdict.reason


def _evidence(facts: Facts, trial: Trial | None, outlook: Outlook | None, rulings: Rulings) -> tuple[str, ...]:
    case = facts.case
    found = [trial.text] if trial else []
    if rulings.job and case.spec is not None and not case.forced:
        found.append(f"The rules refuse the job's settings: {findings_text(rulings.job)}.")
    if facts.reference is not None:
        found += _against(facts)
    if case.has_oom or case.status == "ok":
        found += stage_evidence(case)
    if outlook and outlook.fits_already and (is_device_oom(case) or case.verdict.is_in_setup):
        more = unexplained_bytes(case) or 0
        step = "A training step is predicted to fit."
        found.append(step if case.verdict.is_in_setup else "The settings are predicted to fit as they are.")
        if more > 0:
            found.append(f"The prediction does not account for {format_bytes(more)}.")
    if case.retried and is_device_oom(case):
        found.append(
            "Before it failed, the allocator had already freed cached blocks to retry a request (num_alloc_retries above 0)."
        )
    return tuple(found)


def _against(facts: Facts) -> list[str]:
    case, reference, lost = facts.case, facts.reference, loss_of_speed(facts)
    assert reference is not None
    lines = []
    if lost is not None:
        lines.append(
            f"{case.tflops_per_gpu:.1f} TFLOP/s/GPU, {reference.name} {reference.tflops_per_gpu:.1f} "
            f"({format_percent(-lost)})."
        )
    if case.peak_bytes is not None and reference.peak_bytes is not None:
        change = format_percent(case.peak_bytes / reference.peak_bytes - 1)
        lines.append(
            f"Peak {format_bytes(case.peak_bytes)}, {reference.name} {format_bytes(reference.peak_bytes)} ({change})"
            f"{': a job that runs out of memory may end before its peak' if case.has_oom or reference.has_oom else ''}."
        )
    return lines
