"""What the doctor found, a line each, the remedy under those that need one."""

from collections.abc import Iterable

from rich.text import Text

from harness.report.console import Console
from harness.report.printing import print_hanging

_INDENT = 9  # behind the state
_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def print_lines(console: Console, lines: Iterable[tuple[str, str, str, str]]) -> None:
    """Lines of (name, state, what was found, remedy)."""
    for name, state, found, remedy in lines:
        print_hanging(console, Text.assemble((f"{state:<8}", _STYLES[state]), f" {name}: {found}"), _INDENT)
        if state != "ok" and remedy:
            print_hanging(console, Text(f"{' ' * _INDENT}{remedy}"), _INDENT)
