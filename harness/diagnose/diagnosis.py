"""Judges what failed and decides which fixes to offer."""

import re
from dataclasses import replace

from harness.diagnose.allocator import account_of
from harness.diagnose.fixes import Situation, fixes
from harness.diagnose.stages import expected, stage_evidence
from harness.diagnose.values import (
    NO_RULINGS,
    AllocatorAnswer,
    Case,
    Diagnosis,
    Job,
    Outlook,
    Recognised,
    Rulings,
    Verdict,
    findings_text,
    is_doubted,
)
from harness.experiment.rules.rulebook import Refusal, filled, refusals, without_unknown
from harness.failures.entries import word_of
from harness.failures.verdict import Confidence
from harness.units import format_bytes, shortened

_DOUBT = "The rules refuse the settings as given: {}. The job ran, so it had others. mbr-perf ignores these."


def diagnose(
    case: Case,
    outlook: Outlook | None = None,
    rulings: Rulings = NO_RULINGS,
    allocator: AllocatorAnswer | None = None,
) -> Diagnosis:
    """Diagnose ``case``. The answer shows settings that cannot be the job's own, and ignores them."""
    symptoms = recognised(case)
    oom_class, confidence, reason = _class(case, symptoms)
    doubt = findings_text(rulings.job) if is_doubted(case, rulings) else ""
    known = Situation(
        replace(case, spec=None) if doubt else case, oom_class, symptoms, outlook, rulings, allocator, doubt
    )
    doubts = [_DOUBT.format(doubt)] if doubt and case.status == "ok" else []
    account = account_of(allocator, is_captured=case.is_captured) if allocator else ()
    is_conclusive = (
        bool(symptoms)
        or (case.failed is not None and case.verdict.oom_class != "unknown")
        or case.status == "ok"
        or case.has_oom
        or case.has_nan
        or case.verdict.confidence == "high"
    )
    certain = (oom_class, confidence) if is_conclusive else (None, None)
    return Diagnosis(
        case=case,
        verdict=Verdict.of(case, oom_class=certain[0], confidence=certain[1], reason=reason),
        evidence=(*doubts, *_evidence(known.case, outlook, rulings), *account),
        symptoms=symptoms,
        fixes=fixes(known),
        job=Job.of(case),
        expected=expected(case),
        allocator=allocator,
    )


def _class(case: Case, symptoms: tuple[Recognised, ...]) -> tuple[str, Confidence, str]:
    verdict = case.verdict
    is_open = verdict.oom_class in ("not_oom", "unknown")
    if is_open and case.status not in ("ok", "oom") and symptoms:
        return "not_oom", "high" if case.failed else "medium", symptoms[0].cause
    if verdict.oom_class == "not_oom" and case.failed is None and case.has_nan:
        return "not_oom", "high", "the loss is not finite"
    return verdict.oom_class, verdict.confidence, verdict.reason


def _evidence(case: Case, outlook: Outlook | None, rulings: Rulings) -> tuple[str, ...]:
    found = [f"Why now: {case.why_now}."] * bool(case.why_now)
    if rulings.job and case.spec is not None and not case.forced:
        found.append(f"The rules refuse the job's settings: {findings_text(rulings.job)}.")
    if case.has_oom or case.status == "ok":
        found += stage_evidence(case)
    if outlook and outlook.fits_already:
        found.append("A training step is predicted to fit.")
    if case.failed and case.origin == "run" and case.fills_device:
        failed = case.failed.rank
        if others := max((rank.reserved_bytes or 0 for rank in case.ranks if rank.rank != failed), default=0):
            found.append(f"The other ranks held at most {format_bytes(others)} until then.")
    return tuple(found)


def recognised(case: Case) -> tuple[Recognised, ...]:
    """Return every refusal of megatron-core that the job's failures say, with the values in it."""
    found = (refusal for refusal in refusals() if word_of(refusal.pattern) in case.said)
    return tuple(_row(each, match, case) for each in found if (match := re.search(each.pattern, case.said)))


def _row(refusal: Refusal, match: re.Match[str], case: Case) -> Recognised:
    values = match.groupdict()
    line = match.string[match.string.rfind("\n", 0, match.start()) + 1 :].partition("\n")[0]
    return Recognised(
        id=refusal.rule or "megatron_core",
        cause=filled(refusal.message, values),
        fix=without_unknown(filled(refusal.fix, values)),
        evidence=f"{case.failed.where if case.failed else case.name}: {shortened(line, 160)}",
    )
