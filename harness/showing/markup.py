"""Writes a page as Markdown and as HTML. Texts come from users' data: none of them becomes markup."""

import html as html_entities
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from harness.showing.page import (
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
    Style,
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
    """The page below a heading of ``level``. ``with_images``: the pictures lie as PNG files beside it.

    Without them only the captions are told.
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
        return "\n\n".join(text for one in blocks if (text := _markdown(one, at, with_images=with_images)))

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
    """A block of code, whose fence is longer than any in ``text``."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}\n{text.rstrip()}\n{fence}"


# Tints of the palette of Okabe and Ito, on which black text reads well; what is red is also bold.
_STYLE = """
body { font: 15px/1.45 Arial, Helvetica, sans-serif; color: #111; max-width: 1180px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } .answer { font-size: 1.05em; border-left: 4px solid #0072B2; padding: .4em .8em; background: #f4f7fa; }
table { border-collapse: collapse; font-size: 13px; } .wide { overflow-x: auto; }
th, td { padding: 3px 9px; border-bottom: 1px solid #ddd; text-align: left; white-space: nowrap; }
th.right, td.right { text-align: right; font-variant-numeric: tabular-nums; } td.long { white-space: normal; min-width: 14em; }
td.good { background: #d5efe5; } td.better { background: #d3ebf9; } td.doubt { background: #fbf6c1; }
td.worse { background: #f6b98f; font-weight: bold; } td.failed { background: #e8a0a0; font-weight: bold; }
td.oom { background: #e7bcd3; font-weight: bold; } td.expected { background: #e4e4e4; }
.strong, .chosen { font-weight: bold; } .dim { color: #555; } li.bad, p.bad, span.bad { color: #b03a00; } li { overflow-wrap: anywhere; }
.sticks { max-height: 85vh; overflow: auto; } .sticks thead th { position: sticky; top: 0; background: #fff; }
.sticks td:first-child { position: sticky; left: 0; background: #fff; } body:has(.sticks) { max-width: none; }
figure { margin: 2em 0; } figcaption { color: #444; font-size: 13px; max-width: 60em; } a { color: inherit; }
h3 { margin-bottom: .2em; } details { margin: .6em 0; } summary { cursor: pointer; } [id] { scroll-margin-top: 3em; }
footer { color: #555; font-size: 12px; overflow-wrap: anywhere; } pre { overflow-x: auto; }
"""
_SIGNS: dict[Style, str] = {
    "good": "\N{CHECK MARK} ", "better": "\N{BLACK UP-POINTING TRIANGLE} ", "doubt": "? ",
    "worse": "\N{BLACK DOWN-POINTING TRIANGLE} ", "failed": "\N{MULTIPLICATION X} ", "oom": "\N{BLACK SQUARE} ",
}  # fmt: skip
# Nothing may be fetched, whatever a name in the page tries.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; "
_SCRIPTS = "script-src 'unsafe-inline' 'unsafe-eval'; "


def escape(text: str) -> str:
    """``text`` as HTML shows it; what would steer a terminal that prints the page is legible, too."""
    return html_entities.escape(visible(text))


def html(page: Page) -> str:
    """The page as one file that fetches nothing. Pictures are drawn by scripts in it, where they can be drawn."""
    scripts = _scripts([block for block in page.blocks if isinstance(block, Picture)])
    title = f"{page.title}: {page.headline}" if page.headline else page.title
    about = ". ".join(part for part in (page.headline, page.about) if part)
    answer = page.closing
    body = [
        f"<h1>{escape(page.title)}</h1>",
        f"<p>{escape(about)}</p>" if about else "",
        f'<p class="answer">{_spans(answer.words)}</p>' if answer else "",
        _list([(note, "plain") for note in page.notes]),
        *(_html(block, 2) for block in page.blocks),
        f"<footer>{escape(page.footer)}</footer>" if page.footer else "",
        *(f"<script>{script}</script>" for script in scripts),
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{_POLICY}{_SCRIPTS if scripts else ""}img-src data:">'
        f'<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body></html>\n"
    )


def _scripts(pictures: Sequence[Picture]) -> list[str]:
    drawn = [picture for picture in pictures if picture.vega_lite]
    if not drawn:
        return []
    from harness.showing.charts import drawing

    return [drawing.library(), drawing.embedding(drawn)]


def _html(block: Block, level: int) -> str:  # noqa: C901, PLR0911 (an arm per kind of block)
    match block:
        case str():
            return f"<p>{escape(block)}</p>"
        case Line():
            return f'<p class="{block.style}">{_spans(block.words)}</p>'
        case Listing():
            items = [item if isinstance(item, Line) else Line(item) for item in block.items]
            return _list([(item.words, item.style) for item in items])
        case Facts():
            rows = (f"<tr><th>{escape(name)}</th>{_cell(value, 'long')}</tr>" for name, value in block.rows)
            return f"<table><tbody>{''.join(rows)}</tbody></table>"
        case Table():
            return _html_table(block.filled())
        case Section():
            return _html_section(block, level)
        case Code():
            return f"<pre>{escape(block.text)}</pre>"
        case Picture():
            return _figure(block)
        case Bars():
            return _bars(block)
        case Only(where="pages" | "html"):
            return "".join(_html(one, level) for one in block.blocks)
        case Only() | Gap():
            return ""


def _spans(words: Words) -> str:
    return "".join(_span(span) for span in spans(words))


def _span(span: Span) -> str:
    text = escape(span.text)
    linked = f'<a href="{escape(span.link)}">{text}</a>' if span.link else text
    styled = linked if span.style == "plain" else f'<span class="{span.style}">{linked}</span>'
    return f"{styled}<br><small>{escape(span.beside)}</small>" if span.beside else styled


def _list(lines: Sequence[tuple[Words, Style]]) -> str:
    items = "".join(f'<li class="{style}">{_spans(words)}</li>' for words, style in lines)
    return f"<ul>{items}</ul>" if items else ""


def _html_table(table: Table) -> str:
    kinds = ["right" if column.right else "long" if column.long else "left" for column in table.columns]
    head = "".join(
        f'<th class="{kind}">{escape(column.title)}</th>' for column, kind in zip(table.columns, kinds, strict=True)
    )
    rows = ("".join(_cell(cell, kind) for cell, kind in zip(row, kinds, strict=True)) for row in table.rows)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    sticks = " sticks" if table.sticks else ""
    return f'<div class="wide{sticks}"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(words: Words, kind: str) -> str:
    """A cell; one span with a style is tinted and signed as a whole."""
    if not isinstance(words, Span):
        return f'<td class="{kind}">{_spans(words)}</td>'
    signed = replace(words, text=_SIGNS.get(words.style, "") + words.text, style="plain")
    return f'<td class="{kind} {words.style}">{_span(signed)}</td>'


def _html_section(section: Section, level: int) -> str:
    """The anchor of a folded section lies inside: a browser that goes there unfolds it."""
    named = f' id="{escape(section.anchor)}"' if section.anchor else ""
    inner = "".join(_html(block, level + 1) for block in section.blocks)
    if section.folded:
        return f"<details><summary>{escape(section.title)}</summary><div{named}>{inner}</div></details>"
    return f"<h{level}{named}>{escape(section.title)}</h{level}>{inner}"


def _figure(picture: Picture) -> str:
    if picture.vega_lite is None:
        return f"<figure><figcaption><b>{escape(picture.title)}.</b> {escape(picture.missing)}</figcaption></figure>"
    return f'<figure><div id="{picture.name}"></div><figcaption>{escape(picture.caption)}</figcaption></figure>'


_BAR, _NAME, _STEP = 360, 250, 20


def _bars(block: Bars) -> str:
    """A small SVG; nothing for no bars."""
    if not block.bars:
        return ""
    longest = max(value for _, value, _ in block.bars) or 1.0
    lines = []
    for number, (name, value, text) in enumerate(block.bars):
        top, wide = number * _STEP, max(value, 0) / longest * _BAR
        lines.append(
            f'<text x="{_NAME - 6}" y="{top + 14}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{_NAME}" y="{top + 3}" width="{wide:.1f}" height="14" fill="#0072B2"/>'
            f'<text x="{_NAME + wide + 5:.1f}" y="{top + 14}">{escape(text)}</text>'
        )
    wide, high = _NAME + _BAR + 90, len(block.bars) * _STEP
    return (
        f"<figure><figcaption><b>{escape(block.title)}</b></figcaption>"
        f'<svg width="{wide}" height="{high}" viewBox="0 0 {wide} {high}" role="img" font-size="12">{"".join(lines)}</svg></figure>'
    )
