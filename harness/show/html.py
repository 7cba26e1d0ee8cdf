"""Writes a page as one HTML file. Texts come from users' data: none of them becomes markup."""

import html as html_entities
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from harness.show.page import (
    Block,
    Code,
    Column,
    Facts,
    Line,
    Listing,
    Page,
    Picture,
    Section,
    Span,
    Style,
    Table,
    Words,
    blocks_for,
    plain,
    spans,
    visible,
)  # fmt: skip

# Tints of the palette of Okabe and Ito; every text on them has a contrast of 4.5 or more. Red texts are also bold.
# Pictures are drawn dark on white: turning lightness round and the hue back keeps their colours apart on a dark page.
_STYLE = Path(__file__).with_name("page.css")
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
    """Return the page as one file that fetches nothing.

    Pictures lie in it as SVG. Where scripts run, the scripts in the page put pictures with tooltips in their place.
    """
    scripts = _scripts([block for block in page.blocks if isinstance(block, Picture)])
    title = f"{page.title}: {page.headline}" if page.headline else page.title
    about = ". ".join(part for part in (page.headline, page.about) if part)
    answer = page.first_line
    parts = [
        "<header>",
        f"<h1>{escape(page.title)}</h1>",
        f"<p>{escape(about)}</p>" if about else "",
        "</header>\n<main>",
        f'<p class="answer">{_spans(answer.words)}</p>' if answer else "",
        _list([(note, "plain") for note in page.notes]),
        _blocks(page.blocks, 2),
        "</main>",
        f"<footer>{escape(page.footer)}</footer>" if page.footer else "",
        *(f"<script>{script}</script>" for script in scripts),
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{_POLICY}{_SCRIPTS if scripts else ""}img-src data:">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{_STYLE.read_text()}</style></head>\n<body>\n"
        + "\n".join(filter(None, parts))
        + "\n</body></html>\n"
    )


def _scripts(pictures: Sequence[Picture]) -> list[str]:
    drawn = [picture for picture in pictures if picture.vega_lite]
    if not drawn:
        return []
    from harness.show.charts import drawing

    return [drawing.library(), drawing.embedding(drawn)]


def _blocks(blocks: Iterable[Block], level: int) -> str:
    return "\n".join(filter(None, (_html(block, level) for block in blocks_for(blocks, "pages", "html"))))


def _html(block: Block, level: int) -> str:  # noqa: PLR0911 (an arm per kind of block)
    match block:
        case str():
            return f"<p>{escape(block)}</p>" if block else ""
        case Line():
            return f'<p class="{block.style}">{_spans(block.words)}</p>'
        case Listing():
            return _list([(line.words, line.style) for line in block.lines])
        case Facts():
            return _facts(block)
        case Table():
            return _html_table(block.filled())
        case Section():
            return _html_section(block, level)
        case Code():
            return f"<pre>{_OPTION.sub(_UNBROKEN, escape(block.text))}</pre>"
        case Picture():
            return _figure(block, level)
        case _:
            return ""


# Lines would break after the hyphens of an option.
_OPTION, _UNBROKEN = re.compile(r"(?<!\S)--?\w[\w-]*"), r'<span class="word">\g<0></span>'


def _spans(words: Words) -> str:
    return "".join(_span(span) for span in spans(words))


def _span(span: Span) -> str:
    text = escape(span.text)
    linked = f'<a href="{escape(span.link)}">{text}</a>' if span.link else text
    styled = linked if span.style == "plain" else f'<span class="{span.style}">{linked}</span>'
    beside = f"{'<br>' * bool(span.text)}<small>{escape(span.beside)}</small>" if span.beside else ""
    return styled + beside


def _list(lines: Sequence[tuple[Words, Style]]) -> str:
    items = "".join(f'<li class="{style}">{_spans(words)}</li>' for words, style in lines)
    return f"<ul>{items}</ul>" if items else ""


_LONG = 70  # characters; a longer value has all the width


def _facts(block: Facts) -> str:
    """Names over their values, side by side where there is room. Values without a name belong to the name before."""
    groups: list[tuple[str, list[Words]]] = []
    for name, value in block.rows:
        if name or not groups:
            groups.append((name, []))
        groups[-1][1].append(value)

    def group(name: str, values: Sequence[Words]) -> str:
        full = ' class="full"' if max(len(plain(value)) for value in values) > _LONG else ""
        return f"<div{full}><dt>{escape(name)}</dt>{''.join(f'<dd>{_spans(value)}</dd>' for value in values)}</div>"

    return f"<dl>{''.join(group(name, values) for name, values in groups)}</dl>" if groups else ""


def _html_table(table: Table) -> str:
    kinds = ["right" if column.right else "long" if column.long else "left" for column in table.columns]
    head = "".join(
        f'<th scope="col" class="{kind}">{escape(column.title)}</th>' if column.title else f'<td class="{kind}"></td>'
        for column, kind in zip(table.columns, kinds, strict=True)
    )
    heading = next((at for at, column in enumerate(table.columns) if _heads_rows(column)), None)
    rows = (
        "".join(_cell(cell, kinds[at], is_heading=at == heading and bool(plain(cell))) for at, cell in enumerate(row))
        for row in table.rows
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    sticks = " sticks" if table.sticks else ""
    return (
        f'<div class="wide{sticks}" role="group" aria-label="Table" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


_LONGEST_WHOLE = 48  # characters; a longer text folds, so that the columns after it stay in sight


def _heads_rows(column: Column) -> bool:
    """Return whether the column may name the rows: neither marks, which have no title, nor numbers."""
    return bool(column.title) and column.title != "#" and not column.right


def _cell(words: Words, kind: str, *, is_heading: bool = False) -> str:
    """Return a cell; one span with a style is tinted and signed as a whole.

    A heading names its row for a screen reader.
    """
    opening, closing = ('th scope="row"', "th") if is_heading else ("td", "td")
    if kind == "left" and max((len(span.text) for span in spans(words)), default=0) > _LONGEST_WHOLE:
        kind = "long"
    if not isinstance(words, Span):
        return f'<{opening} class="{kind}">{_spans(words)}</{closing}>'
    signed = replace(words, text=_SIGNS.get(words.style, "") + words.text, style="plain")
    return f'<{opening} class="{kind} {words.style}">{_span(signed)}</{closing}>'


def _html_section(section: Section, level: int) -> str:
    """Return a section. The anchor of a folded section is inside it, so that a browser that goes there unfolds it."""
    named = f' id="{escape(section.anchor)}"' if section.anchor else ""
    inner = _blocks(section.blocks, level + 1)
    if section.folded:
        return f"<details><summary>{escape(section.title)}</summary><div{named}>{inner}</div></details>"
    return f"<h{level}{named}>{escape(section.title)}</h{level}>{inner}"


def _figure(picture: Picture, level: int) -> str:
    title = f"<h{level}>{escape(picture.title)}</h{level}>"
    if picture.vega_lite is None:
        return f"{title}<p>{escape(picture.caption)}</p>"
    from harness.show.charts import drawing

    svg, width = drawing.inline_svg(picture)
    return (
        f'{title}<figure><div class="chart" id="{picture.name}" style="--wide: {width:g}px" role="group" '
        f'aria-label="{escape(picture.title)}" tabindex="0">{svg}</div>'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )
