"""Findings of the rules: as text with fix and megatron-core's own words, and as JSON."""

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.text import Text

from harness.errors import ExitCode
from harness.report.json import SCHEMA_VERSION, Document
from harness.report.printing import print_lines
from harness.report.request_text import effect_lines, explanation, request_lines
from harness.spec.effective import EffectiveRecompute
from harness.spec.experiment import ExperimentSpec
from harness.spec.rules.finding import Finding

_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


def check_document(
    spec: ExperimentSpec,
    effective: EffectiveRecompute | None,
    findings: Iterable[Finding],
    exit_code: ExitCode,
    *,
    sources: Mapping[str, str],
    notes: Iterable[str],
) -> Document:
    """``mbr-perf check --json``."""
    return {
        "schema_version": SCHEMA_VERSION,
        "findings": [finding.model_dump(mode="json") for finding in findings],
        "effective": effective.model_dump(mode="json") if effective else None,
        "exit_code": int(exit_code),
        "spec": spec.model_dump(mode="json"),
        "sources": dict(sources),
        "notes": list(notes),
    }


def print_check(
    console: Console,
    spec: ExperimentSpec,
    effective: EffectiveRecompute | None,
    findings: tuple[Finding, ...],
    exit_code: ExitCode,
    *,
    notes: Iterable[str],
    sources: Mapping[str, str] | None = None,
) -> None:
    """The request, what its recompute does, every finding, one closing line."""
    print_lines(console, [*request_lines(spec), *(effect_lines(effective) if effective else [])])
    print_lines(console, [f"Note: {note}" for note in notes])
    if sources:
        print_lines(console, ["", *explanation(spec, sources)])
    for finding in findings:
        console.print()
        _print_finding(console, finding)
    console.print()
    counts = {severity: sum(f.severity == severity for f in findings) for severity in _STYLES}
    counted = ", ".join(f"{n} {severity}{'s' * (n != 1)}" for severity, n in counts.items())
    word, style = ("LEGAL", "green") if exit_code == ExitCode.OK else ("ILLEGAL", "bold red")
    console.print(Text.assemble((word, style), f" (exit {int(exit_code)})  {counted}"), soft_wrap=True)


def _print_finding(console: Console, finding: Finding) -> None:
    word = "forced" if finding.overridden else finding.severity
    head = Text.assemble((word, _STYLES[finding.severity]), f" {finding.id}: {finding.message}")
    console.print(head, soft_wrap=not console.is_terminal)
    if finding.fix:
        print_lines(console, [f"  fix: {finding.fix}"])
    if finding.mcore_text:
        print_lines(console, [f"  megatron-core: {finding.mcore_text}"], style="dim")
