"""Shows a diagnosis: the kind of failure, the rank, the numbers, known symptoms, and what to try next."""

import re
from collections.abc import Iterator, Sequence

from harness.diagnose.values import NO_PREDICTION, Diagnosis, Fix, Recognised
from harness.failures.verdict import AllocatorFigures, class_name
from harness.resolve.recipe import ASSUMED
from harness.show.page import LONGEST_ANSWER, Facts, Line, Page, Span, answer_line, details
from harness.show.request_text import paste_lines
from harness.units import format_bytes, shortened

_LABEL = 10
_INDENT = 3
_MOST_STEPS = 3
_LONGEST = 240
_SHORT = re.compile(r": | \(")
_SENTENCE = re.compile(r"(?<!e\.g)\. ")


def diagnosis_page(answer: Diagnosis) -> Page:
    """Return the failure and the first step; then the rank, its numbers and what to try. Evidence is a detail."""
    case, steps = answer.case, [_step(number, fix) for number, fix in enumerate(answer.fixes, start=1)]
    said = [shortened(case.failed.message, _LONGEST)] if case.failed else []
    assumed = [text for text in answer.evidence if text.startswith(ASSUMED.capitalize())]
    return Page(
        (
            Facts(tuple(fact for fact in _facts(answer, assumed) if fact[1]), _LABEL),
            *(line for step in steps[:_MOST_STEPS] for line in step),
            details("step", [line for step in steps[_MOST_STEPS:] for line in step]),
            details("message", said),
            details("fact", [text for text in answer.evidence if text not in assumed]),
            details("known symptom", map(_symptom, answer.symptoms)),
            details("note", case.notes),
        ),
        answer=_failure(answer),
    )


def _facts(answer: Diagnosis, assumed: Sequence[str]) -> Iterator[tuple[str, str]]:
    case, found = answer.case, answer.case.verdict.figures
    unplanned = [text.removeprefix(NO_PREDICTION) for text in answer.evidence if text.startswith(NO_PREDICTION)]
    yield "Where", _where(answer)
    yield "Numbers", numbers(found) if found else ""
    yield "Why now", case.why_now
    yield "Allocator", answer.allocator.reason if answer.allocator else ""
    yield "Predicted", f"nothing: {unplanned[0]}" if unplanned and case.origin == "log" else ""
    yield "Assumed", assumed[0].partition(": ")[2] if assumed else ""
    yield "Next", "" if answer.fixes else _nothing(answer)


def _symptom(row: Recognised) -> str:
    return f"megatron-core refuses the settings ({row.id}): {row.evidence.rstrip('.')}. Cause: {row.cause}"


def _step(number: int, fix: Fix) -> tuple[Line, ...]:
    command = [Line(f"{'':{_INDENT}}{fix.command}", whole=True)] if fix.command else []
    setting = paste_lines(fix.setting, _INDENT) if fix.setting else ()
    return (Line(f"{number}. {fix.text}", hang=_INDENT), *command, *setting)


def _failure(answer: Diagnosis) -> Line:
    case, verdict = answer.case, answer.verdict
    if case.status == "ok" and case.failed is None and not case.has_nan:
        return answer_line((Span("No failure", "good"), ": the job ended well."))
    sure = f" ({verdict.confidence})" if answer.is_conclusive else ""
    link = " " if verdict.reason.startswith("while it ") else ": "
    name = Span(class_name(verdict.oom_class or "unknown"), "bad")
    reason = f"{sure}{link}{verdict.reason.rstrip('.')}"
    clauses, steps = (reason, reason.partition("; ")[0]), [*_first_steps(answer)]
    fitting = ((text, step) for text in clauses for step in steps if len(f"{name.text}{text}.{step}") <= LONGEST_ANSWER)
    text, step = next(fitting, (reason, ""))
    return answer_line((name, f"{text}."), step)


def _first_steps(answer: Diagnosis) -> Iterator[str]:
    for fix in answer.fixes[:1]:
        sentence = _SENTENCE.split(fix.text)[0].rstrip(".:")
        for text in (
            sentence,
            sentence.partition(": ")[2].partition(",")[0] if fix.setting else _SHORT.split(sentence)[0],
        ):
            first = text[:1].lower() if text[1:2].islower() else text[:1]  # PP stays PP
            yield f" Next: {first}{text[1:]}."


def _where(answer: Diagnosis) -> str:
    failed = answer.case.failed
    if failed is None:
        return ""
    rank = "unknown rank" if failed.rank is None else f"rank {failed.rank}"
    return f"{', '.join(part for part in (rank, failed.place, failed.when) if part)} ({failed.where})"


def numbers(figures: AllocatorFigures) -> str:
    """Return the figures that the message contains, in a fixed order."""
    outside = None
    if figures.own_bytes is not None and figures.reserved_bytes is not None:
        outside = max(0, figures.own_bytes - figures.reserved_bytes)
    rows = (
        ("requested", figures.tried_bytes), ("device", figures.total_bytes), ("free", figures.free_bytes),
        ("allocated", figures.allocated_bytes), ("in private pools", figures.private_pool_bytes),
        ("reserved but unallocated", figures.unallocated_bytes), ("outside torch's allocator", outside),
        ("allowed", figures.allowed_bytes),
    )  # fmt: skip
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in rows if size is not None)


def _nothing(answer: Diagnosis) -> str:
    if not answer.is_conclusive:
        if answer.case.origin == "run":
            return "diagnose it again when it has ended; until then, see its logs folder"
        return answer.case.verdict.advice or "pass the logs of all ranks, from the start to the end of the job"
    return "nothing to do" if answer.case.status == "ok" else answer.case.verdict.next_experiment
