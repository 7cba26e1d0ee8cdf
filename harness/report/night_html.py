"""A night as one HTML page that needs nothing else: the table, the cases to look at, then every case's figures."""

from collections.abc import Iterable, Sequence
from urllib.parse import quote

from harness.analysis.night.values import CaseVerdict, NightVerdict
from harness.report.figures import BY_NAME, figure
from harness.report.html_page import escape, html_page
from harness.report.night_aa import aa_lines
from harness.report.night_cells import CELL_STYLE, outcome_cell
from harness.report.night_remarks import Story, stories, story
from harness.report.night_rows import night_rows
from harness.report.night_words import about, answer, change_text, headline, is_red, outcome_text, threshold_text

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
