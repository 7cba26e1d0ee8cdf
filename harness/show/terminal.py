"""Writes a page to a terminal or a pipe. What would steer a terminal is shown as text."""

import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import rich.console
import rich.table
from rich.cells import cell_len
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from harness.errors import ExitCode
from harness.records.redact import redact
from harness.show import page

_WORD = re.compile(rf"{page.WHOLE}|\S+")
_RICH: dict[page.Style, str] = {
    "plain": "", "strong": "bold", "dim": "dim", "good": "green", "better": "cyan", "doubt": "yellow", "bad": "red",
    "worse": "bold red", "failed": "bold red", "oom": "red", "expected": "dim", "chosen": "bold green",
}  # fmt: skip


_LEAST_WIDTH = 20
_WIDEST = 10_000


class Console(rich.console.Console):
    """As rich's. Names and messages come from recipes, logs and records, and may hold anything."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of ``renderable``; rich's own movements of the cursor are no text and stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=page.visible(segment.text))


def narration(*, stderr: bool = True) -> Console:
    """Return the console on stderr, for messages and progress while a command works; else that for its answer."""
    return Console(stderr=stderr, highlight=False)


def narrate(*blocks: page.Block) -> None:
    """Print blocks to stderr."""
    print_page(narration(), page.Page(blocks))


def pass_time(line: str) -> None:
    """Print what a command waits for to stderr, if that is a terminal: a file has no use for it."""
    if narration().is_terminal:
        narrate(line)


def show_page(answer: page.Page) -> None:
    """Print as much of the answer to stdout as -q or -v asks for."""
    amount = page.AMOUNT.get()
    console, shown = narration(stderr=False), answer if amount == "all" else answer.brief
    if amount != "answer":
        print_page(console, shown)
        return
    with console.capture() as printed:
        print_page(console, shown)
    console.file.write(f"{printed.get().partition(chr(10))[0]}\n")


def show_blocks(*blocks: page.Block) -> None:
    """Print an answer that is nothing but blocks to stdout."""
    show_page(page.Page(blocks))


def print_page(console: Console, answer: page.Page) -> None:
    """Show the page from its answer to its end. Nothing is folded or cut without a terminal."""
    _Writer(console).write(answer)


def show_stopped(what: str, code: ExitCode, kept: Path | None, go_on: str = "") -> None:
    """Print the answer to Ctrl-C: what was stopped, what is kept, and the command that goes on (the typed one)."""
    command = go_on or shlex.join(["mbr-perf", *map(redact, sys.argv[1:])])
    lines = (
        page.Line(f"INTERRUPTED (exit {int(code)}): {what}", "strong"),
        *([page.Line(f"Kept: {kept}", whole=True)] if kept else []),
        page.Line(f"{'Go on' if go_on else 'Start again'}: {command}", whole=True),
    )
    show_page(page.Page((page.Listing(lines),)))


class _Writer:
    """Writes block after block; a blank line waits until something follows it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._gap = self._began = False

    def write(self, answer: page.Page) -> None:
        if answer.first_line:
            self._line(answer.first_line)
            self._gap = True
        if answer.title:
            self._line(page.Line(f"{answer.title}: {answer.headline}" if answer.headline else answer.title, "strong"))
        self._blocks(
            [*([answer.about] if answer.about else []), *(page.Line(f"Note: {note}", hang=6) for note in answer.notes)]
        )
        self._blocks(answer.blocks)

    def _blocks(self, blocks: Iterable[page.Block], indent: int = 0) -> None:  # noqa: C901 (an arm per kind of block)
        for block in page.blocks_for(blocks, "terminal"):
            match block:
                case page.Gap():
                    self._gap = True
                case str() | page.Line():
                    self._line(page.Line(block) if isinstance(block, str) else block, indent)
                case page.Listing():
                    for line in block.lines:
                        self._line(line, indent)
                case page.Facts():
                    for name, value in block.rows:
                        words: page.Words = (f"{name:<{block.width}}", *page.spans(value))
                        self._line(page.Line(words, block.style, hang=block.width), indent)
                case page.Table():
                    self._table(block)
                case page.Section():
                    self._gap = True
                    self._line(page.Line(block.title, block.style, hang=2), indent)
                    self._blocks(block.blocks, indent + block.indent)
                case page.Code():
                    for text in block.text.splitlines():
                        self._line(page.Line(text, whole=True), indent)
                case _:  # pictures
                    pass

    def _line(self, line: page.Line, indent: int = 0) -> None:
        self._break()
        text = _text(line.words, line.style)
        if indent:
            text = Text(" " * indent) + text
        if line.whole:
            self._console.print(text, soft_wrap=True)
        else:
            self._hanging(text, line.hang + indent)

    def _hanging(self, text: Text, indent: int) -> None:
        if not self._console.is_terminal:
            self._console.print(text, soft_wrap=True)
            return
        width = self._console.width
        first, *rest = _broken(text, _WORD, max(_LEAST_WIDTH, width), max(_LEAST_WIDTH, width - indent))
        self._console.print(first, soft_wrap=True)
        for line in rest:
            self._console.print(Text(" " * indent) + line, soft_wrap=True)

    def _table(self, asked: page.Table) -> None:
        self._break()
        table = asked.filled()
        if asked.whole or not self._console.is_terminal:
            self._whole(_rich_table(table, {}))
            return
        shown, dropped = fitting(table, self._console.width)
        self._whole(_rich_table(shown, widths(shown, self._console.width)))
        if dropped:
            missing = ", ".join(column.title for column in dropped)
            self._line(page.Line(f"Not shown at this width: {missing}", "dim", hang=2))

    def _whole(self, table: rich.table.Table) -> None:
        """Draw it as wide as its columns, without trailing blanks: rich would fold figures and paths."""
        before, self._console.width = self._console.width, _WIDEST
        self._console.width = max(before, self._console.measure(table).maximum)
        try:
            with self._console.capture() as captured:
                self._console.print(table)
        finally:
            self._console.width = before
        for line in captured.get().splitlines():
            self._console.print(Text.from_ansi(line.rstrip()), soft_wrap=True)

    def _break(self) -> None:
        if self._gap and self._began:
            self._console.print()
        self._gap, self._began = False, True


def _rich_table(table: page.Table, widths: Mapping[int, int]) -> rich.table.Table:
    made = rich.table.Table(box=None, pad_edge=False, header_style="bold", padding=(0, PADDING, 0, 0))
    for at, column in enumerate(table.columns):
        made.add_column(
            Text(page.on_one_line(column.title)),
            justify="right" if column.right else "left",
            overflow="fold",
            no_wrap=column.whole,
            width=widths.get(at),
        )
    for row in table.rows:
        made.add_row(*(_folded(_text(words), widths.get(at)) for at, words in enumerate(row)))
    return made


def _folded(text: Text, width: int | None) -> Text:
    if width is None or text.cell_len <= width:
        return text
    return Text("\n").join(_broken(text, page.ITEM, width, width))


def _broken(text: Text, words: re.Pattern[str], room: int, further: int) -> list[Text]:
    """Return a line of ``room`` columns, then lines of ``further``; none ends within one of ``words``, however long."""
    lines, start, end = [], 0, 0
    for word in words.finditer(text.plain):
        if end and cell_len(text.plain[start : word.end()]) > room:
            lines.append(text[start:end])
            start, room = word.start(), further
        end = word.end()
    return [*lines, text[start:]]


def _text(words: page.Words, style: page.Style = "plain") -> Text:
    made = Text(style=_RICH[style])
    for span in page.spans(words):
        made.append(page.on_one_line(span.text), style=_RICH[span.style] or None)
    return made


PADDING = 2  # blanks between two columns
_LEAST_LONG = 30  # a column of sentences is of use from this width on


def fitting(table: page.Table, width: int) -> tuple[page.Table, list[page.Column]]:
    """Return the table without the columns for which ``width`` has no room, and those columns."""
    kept, least = list(range(len(table.columns))), [_least(table, at) for at in range(len(table.columns))]
    while sum(least[at] + PADDING for at in kept) - PADDING > width:
        first = max(table.columns[at].drop for at in kept)
        if not first:
            break
        kept = [at for at in kept if table.columns[at].drop != first]
    dropped = [column for at, column in enumerate(table.columns) if at not in kept]
    return table.only(kept), dropped


def _least(table: page.Table, at: int, least_long: int = _LEAST_LONG) -> int:
    """The width below which a column reads badly: whole figures, the longest part of a name, a start of sentences."""
    column, texts = table.columns[at], [page.plain(row[at]) for row in table.rows]
    words = texts if column.right or column.whole else [word for text in texts for word in page.ITEM.findall(text)]
    widest = _widest([*column.title.split(), *words])
    return max(widest, min(least_long, _widest(texts))) if column.long else widest


def widths(table: page.Table, width: int) -> dict[int, int]:
    """Return each column's part of ``width`` if not all fits on one line: the widest that may fold gives first."""
    least = [_least(table, at) for at in range(len(table.columns))]
    given = [
        _widest([column.title, *(page.plain(row[at]) for row in table.rows)]) for at, column in enumerate(table.columns)
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
