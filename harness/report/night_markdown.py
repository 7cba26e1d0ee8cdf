"""A night as Markdown: for a wiki page, a pull request, or the summary of a CI job."""

import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.analysis.night.values import CaseVerdict, NightVerdict
from harness.report.html_page import as_markdown
from harness.report.night_aa import aa_lines
from harness.report.night_remarks import stories
from harness.report.night_rows import night_rows
from harness.report.night_words import about, answer, headline, is_red
from harness.units import counted

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
        *(_table(cases) if cases else []),
        *(f"- {as_markdown(note)}" for note in verdict.plan.notes),
        *(_details(verdict) if with_details else []),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _listed(lines: Sequence[str]) -> Iterable[str]:
    yield from (f"- {as_markdown(line)}" for line in lines)
    yield from [""] if lines else []


def _table(cases: Sequence[CaseVerdict]) -> Iterable[str]:
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
