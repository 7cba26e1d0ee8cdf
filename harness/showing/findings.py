"""Findings of the rules, with fix and megatron-core's own words."""

from collections.abc import Iterable, Iterator, Mapping

from harness.errors import ExitCode
from harness.experiment.effective import EffectiveRecompute
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.rules.rule import Finding
from harness.showing.page import GAP, Block, Line, Listing, Page, Span, Style
from harness.showing.request_text import explanation, request_facts

_STYLES: dict[str, Style] = {"error": "failed", "warning": "doubt", "note": "dim"}


def check_page(
    spec: ExperimentSpec,
    effective: EffectiveRecompute | None,
    findings: tuple[Finding, ...],
    exit_code: ExitCode,
    *,
    notes: Iterable[str],
    sources: Mapping[str, str] | None = None,
) -> Page:
    """The request, what its recompute does, every finding, one closing line."""
    counted = ", ".join(f"{n} {word}{'s' * (n != 1)}" for word, n in _counts(findings).items())
    verdict = Span("LEGAL", "good") if exit_code == ExitCode.OK else Span("ILLEGAL", "failed")
    return Page(
        (
            request_facts(spec, effective),
            Listing(tuple(f"Note: {note}" for note in notes), hang=6),
            *((GAP, explanation(spec, sources)) if sources else ()),
            *(block for finding in findings for block in _finding(finding)),
        ),
        answer=Line((verdict, f" (exit {int(exit_code)})  {counted}"), whole=True),
    )


def _counts(findings: Iterable[Finding]) -> dict[str, int]:
    """How many of each kind; forced errors apart, and only where there are any."""
    words = [_word(finding) for finding in findings]
    forced = {"forced error": n} if (n := words.count("forced")) else {}
    return forced | {severity: words.count(severity) for severity in _STYLES}


def _word(finding: Finding) -> str:
    return "forced" if finding.overridden else finding.severity


def _finding(finding: Finding) -> Iterator[Block]:
    yield GAP
    yield Line((Span(_word(finding), _STYLES[finding.severity]), f" {finding.id}: {finding.message}"), hang=2)
    if finding.fix:
        yield Line(f"  fix: {finding.fix}", hang=7)
    if finding.mcore_text:
        yield Line(f"  megatron-core: {finding.mcore_text}", "dim", hang=4)
