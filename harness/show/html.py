"""Writes a page as one HTML file. Texts come from users' data: none of them becomes markup."""

import html as html_entities
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import groupby
from pathlib import Path

from harness.show import page
from harness.show.figures import ABSENT
from harness.show.svg import svg

# Tints of the palette of Okabe and Ito; every text on them has a contrast of 4.5 or more. Red texts are also bold.
_STYLE = "".join(Path(__file__).with_name(name).read_text() for name in ("colours.css", "page.css"))
_SCRIPT = Path(__file__).with_name("page.js").read_text()
_SIGNS: dict[page.Style, str] = {
    "good": "\N{CHECK MARK} ", "better": "\N{BLACK UP-POINTING TRIANGLE} ", "doubt": "? ",
    "worse": "\N{BLACK DOWN-POINTING TRIANGLE} ", "failed": "\N{MULTIPLICATION X} ", "oom": "\N{BLACK SQUARE} ",
}  # fmt: skip
# Nothing may be fetched, and no other script may run, whatever a name in the page tries.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    f"script-src 'sha256-{b64encode(sha256(_SCRIPT.encode()).digest()).decode()}'"
)


def escape(text: str) -> str:
    """``text`` as HTML shows it; what would steer a terminal that prints the page is legible, too."""
    return html_entities.escape(page.visible(text))


def html(whole: page.Page) -> str:
    """Return the page as one file that fetches nothing; its only script adds buttons that copy commands."""
    title = f"{whole.title}: {whole.headline}" if whole.headline else whole.title
    about = ". ".join(part for part in (whole.headline, whole.about) if part)
    answer = whole.first_line
    parts = [
        "<header>",
        f"<h1>{escape(whole.title)}</h1>",
        f'<p class="answer">{_spans(answer.words)}</p>' if answer else "",
        f"<p>{escape(about)}</p>" if about else "",
        "</header>\n<main>",
        _blocks(whole.blocks, 2),
        _html_section(page.Section("Notes", (page.Listing(whole.notes),), folded=True), 2) if whole.notes else "",
        "</main>",
        f"<footer>{escape(whole.footer)}</footer>" if whole.footer else "",
        f"<script>{_SCRIPT}</script>",
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{_STYLE}</style></head>\n<body>\n"
        + "\n".join(filter(None, parts))
        + "\n</body></html>\n"
    )


def _blocks(blocks: Iterable[page.Block], level: int) -> str:
    return "\n".join(filter(None, (_html(block, level) for block in _titled(blocks))))


def _titled(blocks: Iterable[page.Block]) -> Iterator[page.Block]:
    for is_bare, group in groupby(blocks, _is_bare):
        shown = tuple(page.blocks_for(group, "pages", "html"))
        yield from (page.Section("Details", shown, folded=True),) if is_bare else shown


def _is_bare(block: page.Block) -> bool:
    titled = page.Section | page.Only
    return isinstance(block, page.Details) and not any(isinstance(each, titled) for each in block.blocks)


def _html(block: page.Block, level: int) -> str:  # noqa: PLR0911 (an arm per kind of block)
    match block:
        case str():
            return f"<p>{escape(block)}</p>" if block else ""
        case page.Line():
            return f'<div class="line {block.style}">{_copyable(block)}</div>'
        case page.Listing():
            items = (f'<li class="{line.style}">{_copyable(line)}</li>' for line in block.lines)
            return f"<ul>{''.join(items)}</ul>" if block.items else ""
        case page.Facts():
            return _facts(block)
        case page.Table():
            return _html_table(block.filled())
        case page.Section():
            return _html_section(block, level)
        case page.Code():
            return _code(block.text)
        case page.Picture():
            figure = f"<figure>{svg(block)}<figcaption>{escape(block.caption)}</figcaption></figure>"
            return f"<h{level}>{escape(block.title)}</h{level}>{figure}"
        case _:
            return ""


# What a shell or a job takes, behind the words that say what it is for.
_COMMAND = re.compile(r"\s*(?:([A-Z][^:`]*): )?((?:mbr-perf |export |'?[a-z_]+\.[\w.]+=|--).*)", re.DOTALL)


def _copyable(line: page.Line) -> str:
    found = _COMMAND.fullmatch(page.plain(line.words)) if line.whole else None
    if found is None:
        return _spans(line.words)
    label, text = found.groups()
    return (f'<span class="label">{escape(label)}</span>' if label else "") + _code(text)


def _code(text: str) -> str:
    return f"<pre>{escape(text)}</pre>" if text else ""


def _spans(words: page.Words) -> str:
    return "".join(map(_span, page.spans(words)))


def _span(span: page.Span) -> str:
    text = escape(span.text)
    linked = f'<a href="{escape(span.link)}">{text}</a>' if span.link else text
    return linked if span.style == "plain" else f'<span class="{span.style}">{linked}</span>'


def _facts(block: page.Facts) -> str:
    shown = (f"<div><dt>{escape(name)}</dt><dd>{_spans(value)}</dd></div>" for name, value in block.rows)
    return f"<dl>{''.join(shown)}</dl>" if block.rows else ""


def _html_table(table: page.Table) -> str:
    kinds = [
        ("right" if column.right else "long" if column.long else "left") + " detail" * column.detail
        for column in table.columns
    ]
    head = "".join(
        f'<th scope="col" class="{kind}">{escape(column.title)}</th>' if column.title else f'<td class="{kind}"></td>'
        for column, kind in zip(table.columns, kinds, strict=True)
    )
    # Neither marks, which have no title, nor numbers name a row.
    heads = (at for at, column in enumerate(table.columns) if column.title not in ("", "#") and not column.right)
    heading = next(heads, None)
    titles = [escape(column.title) for column in table.columns]
    rows = (
        "".join(
            _cell(cell, kinds[at], titles[at], is_heading=at == heading and bool(page.plain(cell)))
            for at, cell in enumerate(row)
        )
        for row in table.rows
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        '<div class="wide" role="group" aria-label="Table" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


_LONGEST_WHOLE = 40  # characters; a longer text folds, so that it fits a phone and columns after it stay in sight
_BAR = re.compile("^[█▉▊▋▌▍▎▏]+ +")  # the bar of a terminal; a page has a picture


def _cell(words: page.Words, kind: str, title: str, *, is_heading: bool = False) -> str:
    named = f' data-title="{title}"'
    opening, closing = ('th scope="row"', "th") if is_heading else ("td", "td")
    kind = "long" if kind == "left" and len(page.plain(words)) > _LONGEST_WHOLE else kind
    kind += " none" * (page.plain(words) == ABSENT)
    if not isinstance(words, page.Span):
        return f'<{opening} class="{kind}"{named}>{_spans(words)}</{closing}>'
    signed = replace(words, text=_SIGNS.get(words.style, "") + _BAR.sub("", words.text), style="plain")
    return f'<{opening} class="{kind} {words.style}"{named}>{_span(signed)}</{closing}>'


def _html_section(section: page.Section, level: int) -> str:
    """Return a section. The anchor of a folded section is inside it, so that a browser that goes there unfolds it."""
    named = f' id="{escape(section.anchor)}"' if section.anchor else ""
    inner = _blocks(section.blocks, level + 1)
    if not inner:
        return ""
    if section.folded:
        return f"<details><summary>{escape(section.title)}</summary><div{named}>{inner}</div></details>"
    return f"<h{level}{named}>{escape(section.title)}</h{level}>{inner}"
