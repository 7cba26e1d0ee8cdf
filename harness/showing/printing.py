"""Prints text and tables, and shows what would steer a terminal as text."""

from collections.abc import Iterable

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import StyleType
from rich.table import Table
from rich.text import Text

from harness.showing.page import on_one_line, visible


class Console(rich.console.Console):
    """As rich's. Names and messages come from recipes, logs and records, and may hold anything."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of ``renderable``; rich's own movements of the cursor are no text and stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


_WIDEST = 10_000


def show(console: Console, table: Table) -> None:
    """Print a table; into a pipe or a file as wide as its content: nothing cut or folded."""
    if console.is_terminal:
        console.print(table)
    else:
        show_whole(console, table)


def show_whole(console: Console, table: Table) -> None:
    """As wide as the content, without trailing blanks, also at a terminal: many narrow columns cannot be folded."""
    before = console.width
    console.width = _WIDEST
    console.width = max(before, Measurement.get(console, console.options, table).maximum)
    try:
        with console.capture() as captured:
            console.print(table)
    finally:
        console.width = before
    for line in captured.get().splitlines():
        console.print(Text.from_ansi(line.rstrip()), soft_wrap=True)


class OneLineTable(Table):
    r"""Rows whose cells show a line break as ``\n``."""

    def add_row(self, *cells: RenderableType | None, style: StyleType | None = None, end_section: bool = False) -> None:
        """As rich's."""
        super().add_row(*map(_unbroken, cells), style=style, end_section=end_section)


def _unbroken(cell: RenderableType | None) -> RenderableType | None:
    if isinstance(cell, Text):
        return _joined(cell)
    return on_one_line(cell) if isinstance(cell, str) else cell


def _joined(text: Text) -> Text:
    return Text(r"\n").join(text.split("\n", allow_blank=True)) if "\n" in text.plain else text


def plain_table(*columns: str, right: Iterable[str] = ()) -> Table:
    """A table without lines whose cells fold, never end in dots."""
    table = OneLineTable(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    to_the_right = set(right)
    for column in columns:
        table.add_column(column, justify="right" if column in to_the_right else "left", overflow="fold")
    return table


def print_lines(console: Console, lines: Iterable[str], style: str = "") -> None:
    r"""Text that may hold brackets from users' data: never read as markup, never broken by styling of numbers.

    One line each: a line break is shown as ``\n``.
    """
    for line in lines:
        console.print(Text(on_one_line(line), style=style), soft_wrap=not console.is_terminal)


def print_hanging(console: Console, text: Text, indent: int) -> None:
    r"""One paragraph, line breaks as ``\n``; where somebody watches, its further lines begin ``indent`` columns in."""
    text = _joined(text)
    if not console.is_terminal:
        console.print(text, soft_wrap=True)
        return
    first = text.wrap(console, max(20, console.width))[0]
    console.print(first, soft_wrap=True)
    rest = text[len(first.plain) :]
    blanks = len(rest.plain) - len(rest.plain.lstrip())
    for line in rest[blanks:].wrap(console, max(20, console.width - indent)) if rest.plain.strip() else ():
        console.print(Text(" " * indent) + line, soft_wrap=True)
