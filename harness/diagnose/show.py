"""`mbr-perf diagnose` for people: the kind of failure, where, the numbers, what is known, and what to try next."""

from collections.abc import Iterator
from shlex import quote

from rich.text import Text

from harness.diagnose.of_sweep import FailedRun, SweepOverview
from harness.diagnose.values import Case, Diagnosis
from harness.errors import ExitCode
from harness.judging.oom.allocator_text import AllocatorFigures
from harness.showing.json import SCHEMA_VERSION, Document
from harness.showing.page import Page, listing
from harness.showing.printing import Console, print_hanging
from harness.units import format_bytes

_LABEL = 10
_MOST_NOTES = 3
_LONGEST = 240
_VERDICTS = {True: "confirmed by an A/B", False: "an A/B refuted fragmentation"}


def print_diagnosis(console: Console, answer: Diagnosis) -> None:
    """The whole answer, the most important first."""
    for label, text in _lines(answer):
        print_hanging(console, Text(f"{label:<{_LABEL}}{text}", style="bold" if label == "Failure" else ""), _LABEL)


def _lines(answer: Diagnosis) -> Iterator[tuple[str, str]]:
    yield "Job", _title(answer.case)
    if answer.reference is not None:
        yield "Against", _title(answer.reference)
    yield from _failure(answer)
    for label, texts in (("Evidence", answer.evidence), ("Notes", answer.case.notes[:_MOST_NOTES])):
        for number, text in enumerate(texts):
            yield label if number == 0 else "", text
    for number, row in enumerate(answer.symptoms):
        yield "Known" if number == 0 else "", f"{_start(row.symptom)}: {row.evidence.rstrip('.')}."
        yield "", f"  cause: {row.cause}; to be sure: {row.confirm}"
    for number, fix in enumerate(answer.fixes, start=1):
        yield "Next" if number == 1 else "", f"{number}. {fix.text}"
        if fix.command:
            yield "", f"   {fix.command}"
    if not answer.fixes:
        yield "Next", _nothing(answer)


def _failure(answer: Diagnosis) -> Iterator[tuple[str, str]]:
    case = answer.case
    if case.status == "ok" and case.failed is None and not case.has_nan:
        yield "Failure", "none: the job ended well"
    elif not answer.is_conclusive:
        yield "Failure", f"unknown: {answer.reason}"
    else:
        proved = f", {_VERDICTS[answer.confirmed]}" if answer.confirmed is not None else ""
        yield "Failure", f"{answer.oom_class} ({answer.confidence}{proved}): {answer.reason}"
    if case.failed is not None:
        failed = case.failed
        unnamed = "the whole job" if answer.oom_class in ("time_limit", "node_failure") else "a rank that no line names"
        rank = unnamed if failed.rank is None else f"rank {failed.rank}"
        known = ", ".join(part for part in (rank, failed.place, failed.when) if part)
        yield "Where", f"{known} ({failed.where})"
        yield "", _short(case.failed.message)
    if case.verdict.figures is not None and (told := numbers(case.verdict.figures)):
        yield "Numbers", told


def numbers(figures: AllocatorFigures) -> str:
    """The message's own figures in a fixed order; those that it does not have are left out."""
    outside = None
    if figures.this_process_bytes is not None and figures.reserved_bytes is not None:
        outside = max(0, figures.this_process_bytes - figures.reserved_bytes)
    rows = (
        ("asked for", figures.tried_bytes), ("device", figures.total_bytes), ("free", figures.free_bytes),
        ("allocated", figures.allocated_bytes), ("of it in private pools", figures.private_pool_bytes),
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
            return "diagnose it again when it has ended; what its ranks say meanwhile is in its logs folder"
        return "give the logs of all ranks, from the start to the end of the job"
    return "nothing to do" if answer.case.status == "ok" else answer.case.verdict.next_experiment


def _start(text: str) -> str:
    return text[:1].upper() + text[1:]


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def overview_page(found: SweepOverview) -> Page:
    """How the runs ended, what an A/B came to, and each failed run with the command that diagnoses it."""
    counts = ", ".join(f"{count} {name}" for name, count in found.counts)
    lines = [f"Sweep {found.sweep_dir.name} ({found.title}): {counts}"]
    lines += list(found.ab.lines) if found.ab else []
    for run in found.failed:
        lines += [_line(run), f"  {command(run)}"]
    return Page((listing(lines, hang=0),))


def overview_document(found: SweepOverview, exit_code: ExitCode) -> Document:
    """The same for programs, with the keys of every diagnosis."""
    told = f"{len(found.failed)} of {sum(count for _, count in found.counts)} runs did not end well"
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": {"class": None, "confidence": None, "reason": told, "confirmed": found.ab and found.ab.confirmed},
        "evidence": [*(found.ab.lines if found.ab else ()), *map(_line, found.failed)],
        "fixes": [{"text": f"Diagnose run {run.run_dir.name} of {run.cell}.", "command": command(run)} for run in found.failed],
        "sweep_dir": str(found.sweep_dir),
        "runs": [
            {"run_dir": str(run.run_dir), "cell": run.cell, "status": run.status, "class": run.oom_class,
             "confidence": run.confidence, "rank": run.rank, "told": run.told}
            for run in found.failed
        ],
        "exit_code": int(exit_code),
    }  # fmt: skip


def command(run: FailedRun) -> str:
    """To paste."""
    return f"mbr-perf diagnose {quote(str(run.run_dir))}"


def _line(run: FailedRun) -> str:
    rank = f" on rank {run.rank}" if run.rank is not None else ""
    return f"{run.cell}: {run.status}{rank}: {run.told}"
