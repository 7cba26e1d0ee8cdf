"""The page: a command's answer as one value, which is written to a terminal, a pipe, Markdown or HTML."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeVar

from harness.units import counted, grouped

if TYPE_CHECKING:
    from harness.show.chart import Chart

# Controls but tab and newline, marks that turn the direction of writing, and bytes that are no UTF-8.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")

WHOLE = r"\S*`[^`]+`\S*|\S*\d (?:%|ms|s|min|h|MHz|[KMG]i?B|TFLOP/s)(?!\w)\S*"
"""What no line breaks: a command, a figure and its unit."""
ITEM = re.compile(rf"{WHOLE}|[^\s,]+,?|,")
"""A part of a list of settings, which no line breaks."""


def visible(text: str) -> str:
    r"""``text`` with what would steer a terminal as ``\x1b`` or ``\u202e``."""
    return _STEERING.sub(lambda found: ascii(found[0])[1:-1], text)


def on_one_line(text: str) -> str:
    r"""``text`` as :func:`visible`, with a line break as ``\n``: nothing in it can look like a line of ours."""
    return visible(text).replace("\n", "\\n")


Amount = Literal["answer", "usual", "all"]
AMOUNT: ContextVar[Amount] = ContextVar("AMOUNT", default="usual")
"""How much of a page stdout gets: line 1 (-q), what a reader needs, everything (-v)."""
LONGEST_ANSWER = 160
CASE = "further case"  # the one noun of details that a terminal names

Style = Literal[
    "plain", "strong", "dim", "good", "better", "doubt", "bad", "worse", "failed", "oom", "expected", "chosen"
]

_STYLES: dict[str, Style] = {
    "pass": "good", "ok": "good", "finished": "good", "fits": "good",
    "improvement": "better", "better": "better", "regression": "worse", "worse": "worse",
    "inconclusive": "doubt", "tight": "doubt", "interrupted": "doubt", "warning": "doubt",
    "ok, in doubt": "doubt", "ok, no margin": "doubt",
    "failed": "failed", "error": "failed", "damaged": "failed",
    "oom": "oom", "not_gated": "dim", "note": "dim",
}  # fmt: skip


def style_of(word: str, otherwise: Style = "plain") -> Style:
    """Return the style of an outcome, a verdict or a state: ``good`` for ``pass``."""
    return _STYLES.get(word.lower(), otherwise)


@dataclass(frozen=True)
class Span:
    """A part of a line, or a cell. HTML and Markdown link the address ``link``."""

    text: str
    style: Style = "plain"
    link: str = ""


Words = str | Span | tuple[str | Span, ...]


def spans(words: Words) -> tuple[Span, ...]:
    """Return the parts of ``words``."""
    parts = words if isinstance(words, tuple) else (words,)
    return tuple(Span(part) if isinstance(part, str) else part for part in parts)


def plain(words: Words) -> str:
    """Return the text of ``words`` without styles and links."""
    return "".join(span.text for span in spans(words))


@dataclass(frozen=True)
class Line:
    """A paragraph; further lines are indented by ``hang``. ``whole``: no terminal breaks it, to copy."""

    words: Words
    style: Style = "plain"
    hang: int = 0
    whole: bool = False


@dataclass(frozen=True)
class Listing:
    """Items of equal kind; a terminal prints a line for each, as :class:`Line`, without a bullet."""

    items: tuple[str | Line, ...]
    hang: int = 2

    @property
    def lines(self) -> tuple[Line, ...]:
        return tuple(item if isinstance(item, Line) else Line(item, hang=self.hang) for item in self.items)


@dataclass(frozen=True)
class Facts:
    """Names and values below each other; values begin in column ``width``."""

    rows: tuple[tuple[str, Words], ...]
    width: int
    style: Style = "plain"


@dataclass(frozen=True)
class Column:
    """``drop``: the highest leave a narrow terminal first, by name. ``detail``: -v only. ``long``: folds."""

    title: str
    right: bool = False
    drop: int = 0
    optional: bool = False
    long: bool = False
    whole: bool = False
    detail: bool = False


@dataclass(frozen=True)
class Table:
    """Cells are texts or styled spans. ``whole``: never folded."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Words, ...], ...]
    whole: bool = False

    def filled(self) -> "Table":
        """Return the table without optional columns that are empty. Every row has all cells."""
        rows = tuple((*row, *[""] * (len(self.columns) - len(row))) for row in self.rows)
        kept = [
            at
            for at, column in enumerate(self.columns)
            if not column.optional or any(plain(row[at]) not in ("", "-") for row in rows)
        ]
        return replace(self, rows=rows).only(kept)

    def only(self, kept: Sequence[int]) -> "Table":
        """Return the table with these columns only."""
        cut = tuple(tuple(row[at] for at in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[at] for at in kept), rows=cut)


@dataclass(frozen=True)
class Section:
    """Blocks under a title, indented by ``indent``. ``anchor``: for links; ``folded``: HTML opens it on demand."""

    title: str
    blocks: "tuple[Block, ...]"
    style: Style = "strong"
    indent: int = 0
    anchor: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Code:
    """Lines to copy or to read as they stand: never wrapped, nothing added."""

    text: str


@dataclass(frozen=True)
class Picture:
    """``name`` is the stem of its file; ``caption`` explains it. Terminals show no pictures."""

    name: str
    title: str
    caption: str
    chart: "Chart"


@dataclass(frozen=True)
class Only:
    """Blocks for some writers: ``terminal`` is terminals and pipes, ``pages`` is Markdown and HTML."""

    where: Literal["terminal", "pages", "html"]
    blocks: "tuple[Block, ...]"


@dataclass(frozen=True)
class Details:
    """Blocks that terminals show with ``option`` only; otherwise their last line counts ``num`` of ``noun``."""

    num: int
    noun: str
    blocks: "tuple[Block, ...]" = ()
    option: str = "-v"


@dataclass(frozen=True)
class Gap:
    """A blank line at terminals; several are one."""


GAP = Gap()
Block = str | Line | Listing | Facts | Table | Section | Code | Picture | Only | Details | Gap


def blocks_for(blocks: Iterable[Block], *writers: str) -> Iterator[Block]:
    """Yield the blocks that one of ``writers`` shows, those of :class:`Only` and :class:`Details` among the others."""
    for block in blocks:
        if not isinstance(block, Only | Details):
            yield block
        elif isinstance(block, Details) or block.where in writers:
            yield from blocks_for(block.blocks, *writers)


@dataclass(frozen=True)
class Page:
    """A command's answer: line 1 is ``answer``; ``headline`` and ``about`` stand at the title; notes are details."""

    blocks: tuple[Block, ...]
    title: str = ""
    answer: Words | Line = ""
    headline: str = ""
    about: str = ""
    notes: tuple[str, ...] = ()
    footer: str = ""

    @property
    def first_line(self) -> Line | None:
        if not self.answer:
            return None
        return self.answer if isinstance(self.answer, Line) else Line(self.answer, "strong", whole=True)

    @property
    def brief(self) -> "Page":
        """Return the page without its details. Its last line counts them: ``More with -v: 14 details, 2 columns``."""
        left = Counter({("-v", "detail"): len(self.notes)} if self.answer else {})
        blocks = tuple(_brief(self.blocks, left))
        counts = grouped((option, counted(num, noun)) for (option, noun), num in left.items() if num)
        if self.answer:
            line = "; ".join(f"with {option}: {', '.join(nouns)}" for option, nouns in counts.items())
            return Page((*blocks, Line(f"More {line}", "dim")) if line else blocks, answer=self.answer)
        return replace(self, blocks=blocks)


def _brief(blocks: Iterable[Block], left: Counter[tuple[str, str]]) -> Iterator[Block]:
    for block in blocks:
        match block:
            case Details():
                left[block.option, block.noun if block.option != "-v" or block.noun == CASE else "detail"] += block.num
            case Only(where="terminal"):
                yield from _brief(block.blocks, left)
            case Table():
                whole = block.filled()
                kept = [at for at, column in enumerate(whole.columns) if not column.detail]
                left["-v", "column"] += len(whole.columns) - len(kept)
                yield whole.only(kept)
            case _:
                yield block


def answer_line(first: Words, *more: str, keep: Collection[str] = ()) -> Line:
    """Return line 1 of an answer: ``first``, and those of ``more`` that 160 characters hold, ``keep`` first."""
    parts, room = list(spans(first)), LONGEST_ANSWER - len(plain(first)) - sum(map(len, keep))
    for text in filter(None, more):
        if text in keep or len(text) <= room:
            parts.append(Span(text))
            room -= 0 if text in keep else len(text)
    if room < 0:
        last = parts[-1]
        kept = last.text[: len(last.text) + room - len("...")]
        parts[-1] = replace(last, text=f"{kept.rpartition(' ')[0] or kept[:-1]} ...")
    return Line(tuple(parts), "strong", whole=True)


_EIGHTHS = " ▏▎▍▌▋▊▉"
_BAR_WIDTH = 12


def bar(share: float) -> str:
    """Return a bar of 12 columns for a share; it is full from 1 on."""
    whole, part = divmod(round(max(0.0, min(share, 1.0)) * _BAR_WIDTH * 8), 8)
    return f"{'█' * whole}{_EIGHTHS[part] if part else ''}".ljust(_BAR_WIDTH)


def details(noun: str, lines: Iterable[str | Line], *, title: str = "") -> Details:
    """Return lines that are details, each counted as one ``noun``; with ``title`` as a section."""
    made = Listing(tuple(lines))
    return Details(len(made.items), noun, (Section(title, (made,), folded=True),) if title and made.items else (made,))


def table(columns: Iterable[str | Column], rows: Iterable[Sequence[Words]], *, right: Collection[str] = ()) -> Table:
    """Return a table whose columns are titles or columns; those named in ``right`` are aligned to the right."""
    made = (Column(column, right=column in right) if isinstance(column, str) else column for column in columns)
    return Table(tuple(made), tuple(map(tuple, rows)))


_Item = TypeVar("_Item")


def tabled(
    items: Iterable[_Item],
    columns: Sequence[tuple[Column, Callable[[_Item], Words]]],
) -> Table:
    """Return a row per item, read column by column."""
    rows = tuple(tuple(read(item) for _, read in columns) for item in items)
    return Table(tuple(column for column, _ in columns), rows)


def listing(lines: Iterable[str], *, style: Style = "plain", hang: int = 2) -> Listing:
    """Lines of one style."""
    return Listing(tuple(Line(line, style, hang) if style != "plain" else line for line in lines), hang)
