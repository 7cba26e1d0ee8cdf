"""A sweep as HTML and as Markdown."""

from collections.abc import Sequence
from shlex import quote

from harness.diagnose.of_sweep import FailedRun, SweepOverview
from harness.errors import ExitCode
from harness.showing.charts.drawing import Picture
from harness.showing.figures import BY_NAME, as_markdown, escape, figure, html_page
from harness.showing.json import SCHEMA_VERSION, Document
from harness.showing.printing import Console, print_lines
from harness.sweep.remarks import closing_lines, headline, remarks
from harness.sweep.rows import Rows, rows
from harness.sweep.values import SweepVerdict


def sweep_markdown(verdict: SweepVerdict, pictures: Sequence[Picture], *, with_images: bool) -> str:
    """The whole report. ``with_images``: the pictures lie as PNG files beside it, else only their captions are told."""
    table = rows(verdict)
    *basis, answer = closing_lines(verdict)
    lines = [
        f"# {as_markdown(verdict.title)}",
        "",
        as_markdown(f"{headline(verdict)}. Recipe {verdict.recipe} on {verdict.gpu}, {verdict.started_at}."),
        "",
        f"**{as_markdown(answer)}**",
        "",
        _row(table.titles),
        _row(["---:" if right else "---" for right in table.right], raw=True),
        *(_row(texts) for texts in table.texts),
        "",
        *(f"- {as_markdown(line)}" for line in basis),
        *(f"- {as_markdown(note)}" for note in verdict.notes),
        "",
        *(f"- {as_markdown(remark.line)}" for remark in remarks(verdict)),
        "",
    ]
    for picture in pictures:
        lines += [f"## {as_markdown(picture.title)}", ""]
        if picture.vega_lite is not None and with_images:
            lines += [f"![{as_markdown(picture.title)}]({picture.name}.png)", ""]
        lines += [as_markdown(picture.caption if picture.vega_lite is not None else picture.missing), ""]
    return "\n".join(lines)


def _row(texts: Sequence[str], *, raw: bool = False) -> str:
    return "| " + " | ".join(text if raw else as_markdown(text) for text in texts) + " |"


_BAR, _NAME, _STEP = 360, 250, 20


def svg_bars(title: str, bars: Sequence[tuple[str, float, str]]) -> str:
    """Horizontal bars of (name, value, value as text) on one scale from zero; nothing for no bars."""
    if not bars:
        return ""
    longest = max(value for _, value, _ in bars) or 1.0
    lines = []
    for number, (name, value, text) in enumerate(bars):
        top, wide = number * _STEP, max(value, 0) / longest * _BAR
        lines.append(
            f'<text x="{_NAME - 6}" y="{top + 14}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{_NAME}" y="{top + 3}" width="{wide:.1f}" height="14" fill="#0072B2"/>'
            f'<text x="{_NAME + wide + 5:.1f}" y="{top + 14}">{escape(text)}</text>'
        )
    wide, high = _NAME + _BAR + 90, len(bars) * _STEP
    return (
        f"<figure><figcaption><b>{escape(title)}</b></figcaption>"
        f'<svg width="{wide}" height="{high}" viewBox="0 0 {wide} {high}" role="img" font-size="12">{"".join(lines)}</svg></figure>'
    )


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


def print_overview(console: Console, found: SweepOverview) -> None:
    """How the runs ended, what an A/B came to, and each failed run with the command that diagnoses it."""
    counts = ", ".join(f"{count} {name}" for name, count in found.counts)
    lines = [f"Sweep {found.sweep_dir.name} ({found.title}): {counts}"]
    lines += list(found.ab.lines) if found.ab else []
    for run in found.failed:
        lines += [_line(run), f"  {command(run)}"]
    print_lines(console, lines)


def overview_document(found: SweepOverview, exit_code: ExitCode) -> Document:
    """The same for programs, with the keys of every diagnosis."""
    told = f"{len(found.failed)} of {sum(count for _, count in found.counts)} runs did not end well"
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": {"class": None, "confidence": None, "reason": told, "confirmed": found.ab and found.ab.confirmed},
        "evidence": [*(found.ab.lines if found.ab else ()), *map(_line, found.failed)],
        "fixes": [{"text": f"Diagnose run {run.run_dir.name} of {run.cell}.", "command": command(run)} for run in found.failed],
        "sweep_dir": str(found.sweep_dir),
        "runs": [
            {"run_dir": str(run.run_dir), "cell": run.cell, "status": run.status, "class": run.oom_class,
             "confidence": run.confidence, "rank": run.rank, "told": run.told}
            for run in found.failed
        ],
        "exit_code": int(exit_code),
    }  # fmt: skip


def command(run: FailedRun) -> str:
    """To paste."""
    return f"mbr-perf diagnose {quote(str(run.run_dir))}"


def _line(run: FailedRun) -> str:
    rank = f" on rank {run.rank}" if run.rank is not None else ""
    return f"{run.cell}: {run.status}{rank}: {run.told}"
