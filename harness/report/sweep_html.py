"""A sweep as one HTML file that needs nothing else: no network, no other file."""

from collections.abc import Sequence

from harness.analysis.sweep.values import SweepVerdict
from harness.report.charts.picture import Picture
from harness.report.figures import BY_NAME, figure
from harness.report.html_page import escape, html_page
from harness.report.sweep_bars import svg_bars
from harness.report.sweep_remarks import closing_lines, headline, remarks
from harness.report.sweep_rows import Rows, rows


def sweep_html(verdict: SweepVerdict, pictures: Sequence[Picture], scripts: Sequence[str], obstacle: str = "") -> str:
    """The page. ``scripts`` draw ``pictures``; without them there are small bars, and ``obstacle`` says why."""
    *basis, answer = closing_lines(verdict)
    about = f"{headline(verdict)}. Recipe {verdict.recipe} on {verdict.gpu}, {verdict.started_at}."
    body = [
        f"<h1>{escape(verdict.title)}</h1><p>{escape(about)}</p>",
        f'<p class="answer">{escape(answer)}</p>',
        f'<div class="wide">{_table(rows(verdict))}</div>',
        _list([(line, False) for line in (*basis, *verdict.notes)]),
        *([_figure(picture) for picture in pictures] if scripts else [f"<p>{escape(obstacle)}</p>", _bars(verdict)]),
        "<h2>About the cells</h2>",
        _list([(remark.line, remark.is_bad) for remark in remarks(verdict)]),
        f"<footer>{escape(verdict.sweep_id)}: {escape(' '.join(verdict.command))}</footer>",
        *(f"<script>{script}</script>" for script in scripts),
    ]
    return html_page(verdict.title, body, runs_scripts=True)


def _table(table: Rows) -> str:
    def cells(tag: str, texts: Sequence[str]) -> str:
        return "".join(
            f"<{tag} class='{'right' if right else 'left'}'>{escape(text)}</{tag}>"
            for text, right in zip(texts, table.right, strict=True)
        )

    body = "".join(f"<tr>{cells('td', texts)}</tr>" for texts in table.texts)
    return f"<table><thead><tr>{cells('th', table.titles)}</tr></thead><tbody>{body}</tbody></table>"


def _figure(picture: Picture) -> str:
    if picture.vega_lite is None:
        return f"<figure><figcaption><b>{escape(picture.title)}.</b> {escape(picture.missing)}</figcaption></figure>"
    return f'<figure><div id="{picture.name}"></div><figcaption>{escape(picture.caption)}</figcaption></figure>'


def _list(lines: Sequence[tuple[str, bool]]) -> str:
    items = "".join(f"<li class='{'bad' if is_bad else 'plain'}'>{escape(line)}</li>" for line, is_bad in lines)
    return f"<ul>{items}</ul>" if items else ""


def _bars(verdict: SweepVerdict) -> str:
    charts = []
    for name in ("peak_allocated_bytes", "step_time_s"):
        metric = BY_NAME[name]
        values = [(cell.name, cell.figure(metric)) for cell in verdict.cells if cell.metrics]
        charts.append(svg_bars(metric.title, [(n, v, figure(metric, v)) for n, v in values if v is not None]))
    return "".join(charts)
