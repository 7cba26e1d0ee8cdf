"""Shows the verdict on a request."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from harness.experiment.effective import EffectiveRecompute
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.rules.rule import Finding
from harness.show.json import Document, at
from harness.show.page import GAP, Block, Code, Details, Line, Page, Span, Style, answer_line, details
from harness.show.request_text import (
    assumed_lines,
    explanation,
    export_lines,
    other_notes,
    request_facts,
    request_words,
)
from harness.units import counted


class CheckDocument(Document):
    """``mbr-perf check --json``. ``legal_with``: options that mend all errors, if mbr-perf knows any."""

    findings: tuple[Finding, ...]
    legal_with: tuple[str, ...] = at("cure")
    effective: EffectiveRecompute | None
    exit_code: int
    spec: ExperimentSpec
    sources: dict[str, str]
    notes: tuple[str, ...]


_STYLES: dict[str, Style] = {"error": "failed", "warning": "doubt"}


def check_page(
    spec: ExperimentSpec,
    effective: EffectiveRecompute | None,
    findings: tuple[Finding, ...],
    *,
    notes: Sequence[str],
    cure: str = "",
    sources: Mapping[str, str] | None = None,
) -> Page:
    """Return the verdict with the worst problem, then how to mend each, and all; the request and notes are details."""
    problems = [finding for finding in findings if finding.severity != "note"]
    severities = Counter("forced error" if each.overridden else each.severity for each in problems)
    counts = ", ".join(counted(n, word) for word, n in severities.items())
    legal = Span("LEGAL", "good") if not any(each.blocks for each in problems) else Span("ILLEGAL", "failed")
    worst = next(iter(sorted(problems, key=lambda each: not each.blocks)), None)
    about = f": {counts}. {worst.id}: {worst.message}" if worst else f": {request_words(spec)}"
    facts = request_facts(spec, effective)
    core = [f"{finding.id}: {finding.mcore_text}" for finding in findings if finding.mcore_text]
    return Page(
        (
            *_problem_blocks(problems, worst, is_said=len(about) <= _ROOM),
            *(Line("This command is legal:"), Code(cure)) * bool(cure),
            *((GAP, *explanation(spec, sources)) if sources else ()),
            *assumed_lines(notes),
            GAP,
            *export_lines(notes),
            Details(len(facts.rows), "setting", (facts,)),
            details("note", [*(f"{f.id}: {f.message}" for f in findings if f.severity == "note"), *other_notes(notes)]),
            details("message", core, title="megatron-core's own words"),
        ),
        answer=answer_line((legal, about)),
    )


_ROOM = 150


def _problem_blocks(problems: Sequence[Finding], worst: Finding | None, *, is_said: bool) -> Iterator[Block]:
    for each in sorted(problems, key=lambda each: each is not worst):
        yield from _finding_blocks(each, is_said=is_said and each is worst)


def _finding_blocks(finding: Finding, *, is_said: bool) -> Iterator[Block]:
    word = "forced" if finding.overridden else finding.severity
    if not is_said:
        yield Line((Span(word, _STYLES[finding.severity]), f" {finding.id}: {finding.message}"), hang=2)
    if finding.fix:
        yield Line(f"{finding.id} fix: {finding.fix}" if is_said else f"  fix: {finding.fix}", hang=7)
