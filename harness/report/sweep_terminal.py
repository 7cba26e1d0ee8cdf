"""A sweep for people at a terminal: the table, what is to be said about it, the setting to use."""

from rich.text import Text

from harness.analysis.sweep.values import SweepVerdict
from harness.report.console import Console
from harness.report.printing import plain_table, print_hanging, print_lines, show
from harness.report.sweep_remarks import closing_lines, headline, remarks
from harness.report.sweep_rows import rows

_STYLES = {"ok": "green", "OOM": "red", "failed": "bold red", "interrupted": "yellow"}
_WIDE = 150


def print_sweep(console: Console, verdict: SweepVerdict) -> None:
    """Everything but the pictures; also of a sweep that is not finished. Piped, the table is as wide as it needs."""
    print_lines(console, [f"{verdict.title}: {headline(verdict)}"], style="bold")
    print_lines(console, [f"Note: {note}" for note in verdict.notes])
    console.print()
    table_of = rows(verdict, narrow=console.is_terminal and console.width < _WIDE)
    right = [title for title, is_right in zip(table_of.titles, table_of.right, strict=True) if is_right]
    table = plain_table(*table_of.titles, right=right)
    for texts in table_of.texts:
        table.add_row(*(Text(text, style=_STYLES.get(text, "")) for text in texts))
    show(console, table)
    console.print()
    for remark in remarks(verdict):
        print_hanging(console, Text(remark.line, style="red" if remark.is_bad else ""), 2)
    *lines, answer = closing_lines(verdict)
    print_lines(console, lines)
    console.print()
    print_hanging(console, Text(answer, style="bold"), 2)
