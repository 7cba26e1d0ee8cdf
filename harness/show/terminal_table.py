"""Fits a table to the width of a terminal: drops columns, and breaks cells where they may be broken."""

from collections.abc import Iterable, Mapping

import rich.table
from rich.cells import cell_len
from rich.text import Text

from harness.show.page import Column, Table, on_one_line, plain
from harness.show.terminal import ITEM, broken, text_of

_PADDING = 2
_LEAST_LONG = 30  # a column of sentences is of use from this width on


def fitting(table: Table, width: int) -> tuple[Table, list[Column]]:
    """Return the table without the columns for which ``width`` has no room, and those columns."""
    kept, least = list(range(len(table.columns))), [_least(table, at) for at in range(len(table.columns))]
    while sum(least[at] + _PADDING for at in kept) - _PADDING > width:
        first = max(table.columns[at].drop for at in kept)
        if not first:
            break
        kept = [at for at in kept if table.columns[at].drop != first]
    dropped = [column for at, column in enumerate(table.columns) if at not in kept]
    return table.only(kept), dropped


def _least(table: Table, at: int, least_long: int = _LEAST_LONG) -> int:
    """The width below which a column reads badly: whole figures, the longest part of a name, a start of sentences."""
    column, texts = table.columns[at], [plain(row[at]) for row in table.rows]
    words = texts if column.right or column.whole else [word for text in texts for word in ITEM.findall(text)]
    widest = _widest([*column.title.split(), *words])
    return max(widest, min(least_long, _widest(texts))) if column.long else widest


def widths(table: Table, width: int) -> dict[int, int]:
    """Return each column's part of ``width`` if not all cells fit on one line: the widest that may fold gives first.

    Where even that does not fit, the table is wider than ``width``.
    """
    least = [_least(table, at) for at in range(len(table.columns))]
    given = [
        _widest([column.title, *(plain(row[at]) for row in table.rows)]) for at, column in enumerate(table.columns)
    ]
    excess = sum(given) + _PADDING * (len(given) - 1) - width
    if excess <= 0:
        return {}
    if excess > sum(given) - sum(least):
        least = [_least(table, at, 0) for at in range(len(table.columns))]
    for _ in range(min(excess, sum(given) - sum(least))):
        giver = max((at for at in range(len(given)) if given[at] > least[at]), key=lambda at: given[at])
        given[giver] -= 1
    return dict(enumerate(given))


def _widest(texts: Iterable[str]) -> int:
    return max(map(cell_len, texts), default=0)


def rich_table(table: Table, widths: Mapping[int, int]) -> rich.table.Table:
    """Return the table with the given ``widths`` of columns; a column without one is as wide as its longest cell."""
    made = rich.table.Table(box=None, pad_edge=False, header_style="bold", padding=(0, _PADDING, 0, 0))
    for at, column in enumerate(table.columns):
        made.add_column(
            Text(on_one_line(column.title)),
            justify="right" if column.right else "left",
            overflow="fold",
            no_wrap=column.whole,
            width=widths.get(at),
        )
    for row in table.rows:
        made.add_row(*(_folded(text_of(words), widths.get(at)) for at, words in enumerate(row)))
    return made


def _folded(text: Text, width: int | None) -> Text:
    """``text`` on lines of at most ``width``, broken after spaces and commas: settings are lists without spaces."""
    if width is None or text.cell_len <= width:
        return text
    return Text("\n").join(broken(text, ITEM, width, width))
