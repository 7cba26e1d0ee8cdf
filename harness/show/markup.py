"""Writes a page as Markdown. Texts come from users' data: none of them becomes markup."""

import re
from collections.abc import Iterable

from harness.show.page import (
    Bars,
    Block,
    Code,
    Facts,
    Gap,
    Line,
    Listing,
    Only,
    Page,
    Picture,
    Section,
    Span,
    Table,
    Words,
    spans,
    visible,
)  # fmt: skip

# Characters that would start markup, a table cell or HTML.
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~&])")


def as_markdown(text: str) -> str:
    """Text as it stands, on one line: nothing in it becomes a table cell, a link or HTML."""
    return _MARKUP.sub(r"\\\1", visible(" ".join(text.split())))


def markdown(page: Page, *, level: int = 1, with_images: bool = False) -> str:
    """Return the page below a heading of ``level``. ``with_images``: the pictures are PNG files beside it.

    Without them only the captions are written.
    """
    about = ". ".join(part for part in (page.headline, page.about) if part)
    answer = page.closing
    parts = [
        f"{'#' * level} {as_markdown(page.title)}" if page.title else "",
        f"**{_inline(answer.words, bold=False)}**" if answer else "",
        as_markdown(about),
        _bullets(page.notes),
        *(_markdown(block, level + 1, with_images=with_images) for block in page.blocks),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown(block: Block, level: int, *, with_images: bool) -> str:  # noqa: C901, PLR0911 (an arm per kind of block)
    def inner(blocks: Iterable[Block], at: int) -> str:
        return "\n\n".join(text for block in blocks if (text := _markdown(block, at, with_images=with_images)))

    match block:
        case str():
            return as_markdown(block)
        case Line():
            return _inline(block.words, bold=block.style == "strong")
        case Listing():
            return _bullets([item.words if isinstance(item, Line) else item for item in block.items])
        case Facts():
            return "\n".join(
                f"- {_inline(value) if not name else f'{as_markdown(name)}: {_inline(value)}'}"
                for name, value in block.rows
            )
        case Table():
            return _markdown_table(block.filled())
        case Section():
            return f"{'#' * level} {as_markdown(block.title)}\n\n{inner(block.blocks, level + 1)}".rstrip()
        case Code():
            return _fenced(visible(block.text))
        case Picture():
            image = f"![{as_markdown(block.title)}]({block.name}.png)\n\n" if block.vega_lite and with_images else ""
            caption = block.missing if block.vega_lite is None else block.caption
            return f"{'#' * level} {as_markdown(block.title)}\n\n{image}{as_markdown(caption)}"
        case Only(where="pages"):
            return inner(block.blocks, level)
        case Only() | Bars() | Gap():
            return ""


def _bullets(lines: Iterable[Words]) -> str:
    return "\n".join(f"- {_inline(line)}" for line in lines)


def _inline(words: Words, *, bold: bool = False) -> str:
    text = "".join(_markdown_span(span) for span in spans(words))
    return f"**{text}**" if bold else text


def _markdown_span(span: Span) -> str:
    lead, trail = " " * span.text.startswith(" "), " " * (span.text.endswith(" ") and span.text != " ")
    text = f"{lead}{as_markdown(span.text)}{trail}"
    linked = f"[{text}]({span.link})" if span.link and not span.link.startswith("#") else text
    return f"{linked} {as_markdown(span.beside)}" if span.beside else linked


def _markdown_table(table: Table) -> str:
    def row(texts: Iterable[str]) -> str:
        return f"| {' | '.join(texts)} |"

    head = row(as_markdown(column.title) for column in table.columns)
    rule = row("---:" if column.right else "---" for column in table.columns)
    return "\n".join([head, rule, *(row(map(_inline, cells)) for cells in table.rows)])


def _fenced(text: str) -> str:
    """Return a block of code, whose fence is longer than any in ``text``."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}\n{text.rstrip()}\n{fence}"
