"""A night as HTML and as Markdown."""

import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from harness.night.document import aa_lines
from harness.night.remarks import Story, stories, story
from harness.night.rows import CELL_STYLE, night_rows, outcome_cell
from harness.night.values import CaseVerdict, NightVerdict
from harness.night.words import about, answer, change_text, headline, is_red, outcome_text, threshold_text
from harness.showing.figures import BY_NAME, figure
from harness.showing.markup import as_markdown, escape, html_page
from harness.units import counted

_STYLE = f"""{CELL_STYLE}
td:last-child {{ white-space: normal; min-width: 14em; }} li {{ overflow-wrap: anywhere; }}
h3 {{ margin-bottom: .2em; }} details {{ margin: .6em 0; }} summary {{ cursor: pointer; }}
[id] {{ scroll-margin-top: 3em; }} a {{ color: inherit; }}
"""


def night_html(verdict: NightVerdict) -> str:
    """The page. Each case is at the anchor :func:`anchor` of its name."""
    red = stories(verdict)
    green = [story(case) for case in verdict.cases if not is_red(case)]
    title = f"{verdict.plan.title}: {verdict.outcome}"
    body = [
        f"<h1>{escape(verdict.plan.title)}</h1><p>{escape(f'{headline(verdict)}. {about(verdict)}')}</p>",
        f'<p class="answer">{escape(answer(verdict))}</p>',
        _list((*aa_lines(verdict), *verdict.plan.notes)),
        f'<div class="wide">{_table(verdict)}</div>',
        *(["<h2>To look at</h2>"] if red else []),
        *(_section(each) for each in red),
        *([f"<h2>{'The other' if red else 'All'} cases</h2>"] if green else []),
        *(_folded(each) for each in green),
        f"<footer>{escape(str(verdict.night_dir))}: {escape(' '.join(verdict.plan.command))}</footer>",
    ]
    return html_page(title, body, style=_STYLE)


def anchor(case: str) -> str:
    """The fragment of a case's place on the page, for a link."""
    return f"case-{quote(case, safe='')}"


def _table(verdict: NightVerdict) -> str:
    rows = night_rows(verdict.cases)
    titles = _cells("th", rows.titles, rows.right)
    lines = []
    for case, (name, _, *others) in zip(verdict.cases, rows.texts, strict=True):
        linked = f'<td><a href="#{escape(quote(anchor(case.planned.name)))}">{escape(name)}</a></td>'
        outcome = outcome_cell(case.outcome, outcome_text(case), is_expected=case.is_expected)
        lines.append(f"<tr>{linked}{outcome}{_cells('td', others, rows.right[2:])}</tr>")
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _cells(tag: str, texts: Sequence[str], right: Sequence[bool]) -> str:
    pairs = zip(texts, right, strict=True)
    return "".join(f'<{tag} class="{"right" if to_right else "left"}">{escape(t)}</{tag}>' for t, to_right in pairs)


def _section(told: Story) -> str:
    name = escape(anchor(told.case.planned.name))
    return f'<h3 id="{name}">{escape(told.title)}</h3>{_list(told.lines)}{_figures(told.case)}'


def _folded(told: Story) -> str:
    """The anchor lies inside: a browser that goes there unfolds it."""
    inside = f'<div id="{escape(anchor(told.case.planned.name))}">{_list(told.lines)}{_figures(told.case)}</div>'
    return f"<details><summary>{escape(told.title)}</summary>{inside}</details>"


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def _figures(case: CaseVerdict) -> str:
    """Every finding of the case."""
    if not case.findings:
        return ""
    titles, right = (
        ("Metric", "Now", "Golden", "Change", "Threshold", "Verdict"),
        (False, True, True, True, True, False),
    )
    lines = []
    for finding in case.findings:
        metric = BY_NAME[finding.metric]
        texts = (
            metric.title, figure(metric, finding.current), figure(metric, finding.golden), change_text(finding),
            threshold_text(finding), finding.verdict.value.replace("_", " "),
        )  # fmt: skip
        lines.append(f"<tr>{_cells('td', texts, right)}</tr>")
    head = f"<thead><tr>{_cells('th', titles, right)}</tr></thead>"
    return f'<div class="wide"><table>{head}<tbody>{"".join(lines)}</tbody></table></div>'


SUMMARY_LIMIT_BYTES = 1024 * 1024
"""What GitHub takes of one step's summary, all of its parts together; of more it shows nothing at all."""


def night_markdown(verdict: NightVerdict) -> str:
    """The whole report."""
    return _text(verdict, verdict.cases, with_details=True, left_out="")


def append_summary(path: Path, verdict: NightVerdict) -> None:
    """Append to the file at ``path``, in which others may have written, what finds room below the limit.

    OSError where nothing does.
    """
    taken = path.stat().st_size if path.exists() else 0
    text = night_summary(verdict, SUMMARY_LIMIT_BYTES - taken - 1)
    if not text:
        raise OSError(errno.EFBIG, "it holds already as much as GitHub takes", str(path))
    append_whole(path, text)


def night_summary(verdict: NightVerdict, limit_bytes: int) -> str:
    """The longest report of at most ``limit_bytes`` in UTF-8; it says what is left out. Empty where not a line fits.

    Green cases go first, then the details, then rows from the end, then the table.
    """
    return next((text for text in _ever_shorter(verdict) if len(text.encode("utf-8")) <= limit_bytes), "")


def _ever_shorter(verdict: NightVerdict) -> Iterable[str]:
    red = [case for case in verdict.cases if is_red(case)]
    green = len(verdict.cases) - len(red)
    no_green = f"{counted(green, 'case')} without a problem" if green else ""
    no_details = "the details of each case"
    yield night_markdown(verdict)
    yield _text(verdict, red, with_details=True, left_out=no_green)
    yield _text(verdict, red, with_details=False, left_out=_and(no_green, no_details))
    size = len(red) // 2
    while size:
        rest = f"{len(red) - size} more cases to look at"
        yield _text(verdict, red[:size], with_details=False, left_out=_and(no_green, no_details, rest))
        size //= 2
    yield _text(verdict, (), with_details=False, left_out="every case")
    yield f"**{as_markdown(answer(verdict))}**\n"


def _and(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _text(verdict: NightVerdict, cases: Sequence[CaseVerdict], *, with_details: bool, left_out: str) -> str:
    lines = [
        f"## {as_markdown(verdict.plan.title)}",
        "",
        f"**{as_markdown(answer(verdict))}**",
        "",
        as_markdown(f"{headline(verdict)}. {about(verdict)}"),
        "",
        *_listed(aa_lines(verdict)),
        *([f"Left out here, for want of room: {left_out}; all of it is in {as_markdown(str(verdict.night_dir))}.", ""] if left_out else []),
        *(_markdown_table(cases) if cases else []),
        *(f"- {as_markdown(note)}" for note in verdict.plan.notes),
        *(_details(verdict) if with_details else []),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _listed(lines: Sequence[str]) -> Iterable[str]:
    yield from (f"- {as_markdown(line)}" for line in lines)
    yield from [""] if lines else []


def _markdown_table(cases: Sequence[CaseVerdict]) -> Iterable[str]:
    rows = night_rows(cases)
    yield _row([as_markdown(title) for title in rows.titles])
    yield _row(["---:" if right else "---" for right in rows.right])
    yield from (_row([as_markdown(text) for text in texts]) for texts in rows.texts)
    yield ""


def _row(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _details(verdict: NightVerdict) -> Iterable[str]:
    for red in stories(verdict):
        yield f"### {as_markdown(red.title)}"
        yield ""
        yield from (f"- {as_markdown(line)}" for line in red.lines)
        yield ""


def append_whole(path: Path, text: str) -> None:
    """Append in one write, so that several writers' lines do not mix; a line that a kill cut short is closed first.

    OSError where not all of it could be written.
    """
    content = text.encode("utf-8")
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            content = b"\n" + content
        written = os.write(descriptor, content)
        if written < len(content):
            raise OSError(None, f"only {written} of {len(content)} bytes were written", str(path))
    finally:
        os.close(descriptor)
