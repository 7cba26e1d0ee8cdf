"""A sweep as Markdown: for a pull request or a wiki page, with the pictures where there are any."""

import re
from collections.abc import Sequence

from harness.analysis.sweep.values import SweepVerdict
from harness.report.charts.picture import Picture
from harness.report.console import visible
from harness.report.sweep_remarks import closing_lines, headline, remarks
from harness.report.sweep_rows import rows

# Characters that would start markup, a table cell or HTML.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&])")


def sweep_markdown(verdict: SweepVerdict, pictures: Sequence[Picture], *, with_images: bool) -> str:
    """The whole report. ``with_images``: the pictures lie as PNG files beside it, else only their captions are told."""
    table = rows(verdict)
    *basis, answer = closing_lines(verdict)
    lines = [
        f"# {escape(verdict.title)}",
        "",
        escape(f"{headline(verdict)}. Recipe {verdict.recipe} on {verdict.gpu}, {verdict.started_at}."),
        "",
        f"**{escape(answer)}**",
        "",
        _row(table.titles),
        _row(["---:" if right else "---" for right in table.right], raw=True),
        *(_row(texts) for texts in table.texts),
        "",
        *(f"- {escape(line)}" for line in basis),
        *(f"- {escape(note)}" for note in verdict.notes),
        "",
        *(f"- {escape(remark.line)}" for remark in remarks(verdict)),
        "",
    ]
    for picture in pictures:
        lines += [f"## {escape(picture.title)}", ""]
        if picture.vega_lite is not None and with_images:
            lines += [f"![{escape(picture.title)}]({picture.name}.png)", ""]
        lines += [escape(picture.caption if picture.vega_lite is not None else picture.missing), ""]
    return "\n".join(lines)


def escape(text: str) -> str:
    """Text as it stands, on one line: nothing in it becomes a table cell, a link or HTML."""
    return _SPECIAL.sub(r"\\\1", visible(" ".join(text.split())))


def _row(texts: Sequence[str], *, raw: bool = False) -> str:
    return "| " + " | ".join(text if raw else escape(text) for text in texts) + " |"
