"""Writes a page as Markdown. Texts come from users' data: none of them becomes markup."""

import re
from collections.abc import Iterable

from harness.show import page

# Characters that would start markup, a table cell or HTML.
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~&])")


def as_markdown(text: str) -> str:
    """Text as it stands, on one line: nothing in it becomes a table cell, a link or HTML."""
    return _MARKUP.sub(r"\\\1", page.visible(" ".join(text.split())))


def markdown(whole: page.Page, *, level: int = 1, with_images: bool = False) -> str:
    """Return the page below a heading of ``level``. ``with_images``: the pictures are SVG files beside it."""
    about = ". ".join(part for part in (whole.headline, whole.about) if part)
    answer = whole.first_line
    parts = [
        f"{'#' * level} {as_markdown(whole.title)}" if whole.title else "",
        f"**{_inline(answer.words, bold=False)}**" if answer else "",
        as_markdown(about),
        _bullets(whole.notes),
        _blocks(whole.blocks, level + 1, with_images=with_images),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _blocks(blocks: Iterable[page.Block], level: int, *, with_images: bool) -> str:
    texts = (_markdown(block, level, with_images=with_images) for block in page.blocks_for(blocks, "pages"))
    return "\n\n".join(filter(None, texts))


def _markdown(block: page.Block, level: int, *, with_images: bool) -> str:  # noqa: PLR0911 (an arm per kind of block)
    match block:
        case str():
            return as_markdown(block)
        case page.Line():
            return _inline(block.words, bold=block.style == "strong")
        case page.Listing():
            return _bullets(line.words for line in block.lines)
        case page.Facts():
            return _bullets((f"{name}: ", *page.spans(value)) if name else value for name, value in block.rows)
        case page.Table():
            return _markdown_table(block.filled())
        case page.Section():
            inner = _blocks(block.blocks, level + 1, with_images=with_images)
            return f"{'#' * level} {as_markdown(block.title)}\n\n{inner}".rstrip()
        case page.Code():
            return _fenced(page.visible(block.text))
        case page.Picture():
            image = f"![{as_markdown(block.title)}]({block.name}.svg)\n\n" if with_images else ""
            return f"{'#' * level} {as_markdown(block.title)}\n\n{image}{as_markdown(block.caption)}"
        case _:
            return ""


def _bullets(lines: Iterable[page.Words]) -> str:
    return "\n".join(f"- {_inline(line)}" for line in lines)


def _inline(words: page.Words, *, bold: bool = False) -> str:
    text = "".join(map(_markdown_span, page.spans(words)))
    return f"**{text}**" if bold else text


def _markdown_span(span: page.Span) -> str:
    lead, trail = " " * span.text.startswith(" "), " " * (span.text.endswith(" ") and span.text != " ")
    text = f"{lead}{as_markdown(span.text)}{trail}"
    return f"[{text}]({span.link})" if span.link and not span.link.startswith("#") else text


def _markdown_table(table: page.Table) -> str:
    def row(texts: Iterable[str]) -> str:
        return f"| {' | '.join(texts)} |"

    head = row(as_markdown(column.title) for column in table.columns)
    rule = row("---:" if column.right else "---" for column in table.columns)
    return "\n".join([head, rule, *(row(map(_inline, cells)) for cells in table.rows)])


def _fenced(text: str) -> str:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}\n{text.rstrip()}\n{fence}"
