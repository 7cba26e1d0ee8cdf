"""A night for people at a terminal: the table, what is to be said about each case to look at, the answer."""

from collections.abc import Iterable

from rich.text import Text

from harness.analysis.night.values import CaseVerdict, NightVerdict
from harness.report.console import Console, on_one_line
from harness.report.night_aa import aa_lines
from harness.report.night_remarks import stories
from harness.report.night_rows import night_rows, remark_text
from harness.report.night_words import about, answer, headline, is_red
from harness.report.printing import plain_table, print_hanging, print_lines, show

_WIDE = 150
_STYLES = {"pass": "green", "improvement": "cyan", "inconclusive": "yellow"}


def print_night(console: Console, verdict: NightVerdict) -> None:
    """A night, finished or not; piped, the table is as wide as it needs. The last line alone says how it went."""
    print_lines(console, [f"{verdict.plan.title}: {headline(verdict)}"], style="bold")
    print_lines(console, [about(verdict), *(f"Note: {note}" for note in verdict.plan.notes)])
    for line in aa_lines(verdict):
        print_hanging(console, Text(line), 2)
    console.print()
    _table(console, verdict)
    for story in stories(verdict):
        console.print()
        print_hanging(console, Text(story.title, style=_style(story.case)), 2)
        for line in story.said:
            print_hanging(console, Text(f"  {line}"), 4)
        for line in story.to_copy:
            console.print(Text(on_one_line(f"  {line}")), soft_wrap=True)
    console.print()
    print_lines(console, [f"Night: {verdict.night_dir}"])
    print_hanging(console, Text(answer(verdict), style="bold"), 2)


def _table(console: Console, verdict: NightVerdict) -> None:
    """On a small screen the remarks stand below; those of red cases are among what is told of them anyway."""
    narrow = console.is_terminal and console.width < _WIDE
    rows = night_rows(verdict.cases, narrow=narrow)
    right = [title for title, is_right in zip(rows.titles, rows.right, strict=True) if is_right]
    table = plain_table(*rows.titles, right=right)
    for case, texts in zip(verdict.cases, rows.texts, strict=True):
        name, outcome, *others = texts
        table.add_row(Text(name), Text(outcome, style=_style(case)), *(Text(text) for text in others))
    show(console, table)
    if narrow:
        _remarks(console, [case for case in verdict.cases if not is_red(case)])


def _remarks(console: Console, cases: Iterable[CaseVerdict]) -> None:
    told = [f"{case.planned.name}: {remark_text(case)}" for case in cases if remark_text(case)]
    if told:
        console.print()
    for remark in told:
        print_hanging(console, Text(remark), 2)


def _style(case: CaseVerdict) -> str:
    if case.is_expected:
        return "dim"
    return _STYLES.get(case.outcome, "bold red" if is_red(case) else "")
