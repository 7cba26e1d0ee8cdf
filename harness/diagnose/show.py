"""Shows a diagnosis: the kind of failure, the rank, the numbers, known symptoms, and what to try next."""

from collections.abc import Iterator

from harness.diagnose.values import Case, Diagnosis
from harness.failures.verdict import AllocatorFigures
from harness.show.page import Facts, Line, Page
from harness.show.request_text import paste_lines
from harness.units import format_bytes, shortened

_LABEL = 10
_MOST_NOTES = 3
_LONGEST = 240


def diagnosis_page(answer: Diagnosis) -> Page:
    """Return the whole answer, the most important first."""
    return Page(
        tuple(
            row if isinstance(row, Line) else Facts((row,), _LABEL, "strong" if row[0] == "Failure" else "plain")
            for row in _lines(answer)
        )
    )


def _lines(answer: Diagnosis) -> Iterator[tuple[str, str] | Line]:
    """Yield facts, and commands to copy, which must stay on one line."""
    yield "Job", _title(answer.case)
    yield from _failure(answer)
    for label, texts in (("Evidence", answer.evidence), ("Notes", answer.case.notes[:_MOST_NOTES])):
        for number, text in enumerate(texts):
            yield label if number == 0 else "", text
    for number, row in enumerate(answer.symptoms):
        yield "Known" if number == 0 else "", f"{row.symptom[:1].upper()}{row.symptom[1:]}: {row.evidence.rstrip('.')}."
        yield "", f"  cause: {row.cause}; to confirm: {row.confirm}"
    for number, fix in enumerate(answer.fixes, start=1):
        yield "Next" if number == 1 else "", f"{number}. {fix.text}"
        if fix.command:
            yield Line(f"{'':{_LABEL + 3}}{fix.command}", whole=True)
        if fix.setting:
            yield from paste_lines(fix.setting, _LABEL + 3)
    if not answer.fixes:
        yield "Next", _nothing(answer)


def _failure(answer: Diagnosis) -> Iterator[tuple[str, str]]:
    case = answer.case
    if case.status == "ok" and case.failed is None and not case.has_nan:
        yield "Failure", "none: the job ended well"
    elif not answer.is_conclusive:
        yield "Failure", f"unknown: {answer.verdict.reason}"
    else:
        yield "Failure", f"{answer.verdict.oom_class} ({answer.verdict.confidence}): {answer.verdict.reason}"
    if case.failed is not None:
        failed = case.failed
        unnamed = "the whole job" if answer.verdict.oom_class in ("time_limit", "node_failure") else "unknown rank"
        rank = unnamed if failed.rank is None else f"rank {failed.rank}"
        known = ", ".join(part for part in (rank, failed.place, failed.when) if part)
        yield "Where", f"{known} ({failed.where})"
        yield "", shortened(case.failed.message, _LONGEST)
    if case.verdict.figures is not None and (text := numbers(case.verdict.figures)):
        yield "Numbers", text


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


def _title(case: Case) -> str:
    spec = case.spec
    if spec is None:
        return case.name
    where = f"{spec.num_gpus} {'ranks on cpu' if spec.gpu_type.is_cpu else spec.gpu}"
    return f"{case.name} ({spec.recipe} {spec.task}, {where}, {spec.compute_dtype}, recompute {spec.recompute.text})"


def _nothing(answer: Diagnosis) -> str:
    if not answer.is_conclusive:
        if answer.case.origin == "run":
            return "diagnose the run again when it has ended; until then, see the logs folder of the run"
        return answer.case.verdict.advice or "pass the logs of all ranks, from the start to the end of the job"
    return "nothing to do" if answer.case.status == "ok" else answer.case.verdict.next_experiment
