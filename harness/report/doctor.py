"""What the doctor found, a line each, the remedy under those that need one."""

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def print_lines(console: Console, lines: Iterable[tuple[str, str, str, str]]) -> None:
    """Lines of (name, state, what was found, remedy)."""
    for name, state, found, remedy in lines:
        console.print(Text.assemble((f"{state:<8}", _STYLES[state]), f" {name}: {found}"), soft_wrap=True)
        if state != "ok" and remedy:
            console.print(Text(f"         {remedy}"), soft_wrap=True)
