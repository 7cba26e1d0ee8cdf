"""Fits a table to the width of a terminal: drops columns, and shares the width among the others."""

from collections.abc import Iterable

from rich.cells import cell_len

from harness.show.page import ITEM, Column, Table, plain

PADDING = 2  # blanks between two columns
_LEAST_LONG = 30  # a column of sentences is of use from this width on


def fitting(table: Table, width: int) -> tuple[Table, list[Column]]:
    """Return the table without the columns for which ``width`` has no room, and those columns."""
    kept, least = list(range(len(table.columns))), [_least(table, at) for at in range(len(table.columns))]
    while sum(least[at] + PADDING for at in kept) - PADDING > width:
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
    """Return each column's part of ``width`` if not all fits on one line: the widest that may fold gives first."""
    least = [_least(table, at) for at in range(len(table.columns))]
    given = [
        _widest([column.title, *(plain(row[at]) for row in table.rows)]) for at, column in enumerate(table.columns)
    ]
    excess = sum(given) + PADDING * (len(given) - 1) - width
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
