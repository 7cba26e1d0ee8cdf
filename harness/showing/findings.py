"""Findings of the rules, with fix and megatron-core's own words."""

from collections.abc import Iterable, Mapping

from rich.text import Text

from harness.errors import ExitCode
from harness.experiment.effective import EffectiveRecompute
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.rules.rule import Finding
from harness.showing.printing import Console, print_hanging, print_lines
from harness.showing.request_text import effect_lines, explanation, request_lines

_VALUES = 13  # the column in which request_lines begins values
_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


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
    for line in (*request_lines(spec), *(effect_lines(effective) if effective else [])):
        print_hanging(console, Text(line), _VALUES)
    for note in notes:
        print_hanging(console, Text(f"Note: {note}"), 6)
    if sources:
        print_lines(console, ["", *explanation(spec, sources)])
    for finding in findings:
        console.print()
        _print_finding(console, finding)
    console.print()
    counted = ", ".join(f"{n} {word}{'s' * (n != 1)}" for word, n in _counts(findings).items())
    word, style = ("LEGAL", "green") if exit_code == ExitCode.OK else ("ILLEGAL", "bold red")
    console.print(Text.assemble((word, style), f" (exit {int(exit_code)})  {counted}"), soft_wrap=True)


def _counts(findings: Iterable[Finding]) -> dict[str, int]:
    """How many of each kind; forced errors apart, and only where there are any."""
    words = [_word(finding) for finding in findings]
    forced = {"forced error": n} if (n := words.count("forced")) else {}
    return forced | {severity: words.count(severity) for severity in _STYLES}


def _word(finding: Finding) -> str:
    return "forced" if finding.overridden else finding.severity


def _print_finding(console: Console, finding: Finding) -> None:
    head = Text.assemble((_word(finding), _STYLES[finding.severity]), f" {finding.id}: {finding.message}")
    print_hanging(console, head, 2)
    if finding.fix:
        print_hanging(console, Text(f"  fix: {finding.fix}"), 7)
    if finding.mcore_text:
        print_hanging(console, Text(f"  megatron-core: {finding.mcore_text}", style="dim"), 4)
