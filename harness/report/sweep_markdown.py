"""A sweep as Markdown: for a pull request or a wiki page, with the pictures where there are any."""

from collections.abc import Sequence

from harness.analysis.sweep.values import SweepVerdict
from harness.report.charts.picture import Picture
from harness.report.html_page import as_markdown
from harness.report.sweep_remarks import closing_lines, headline, remarks
from harness.report.sweep_rows import rows


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
