"""The index of all nights as a page."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.nightly.show import anchor, outcome_style
from harness.nightly.words import SPEED, marked
from harness.records.folders import folders
from harness.records.store import write_atomically
from harness.show.figures import format_rate
from harness.show.html import html
from harness.show.page import Line, Listing, Page, Section, Span, Style, Table, Words, table
from harness.units import counted, format_bytes, format_percent, grouped

JUDGED, PAGE, PLAN = Path("report") / "night.json", Path("report") / "night.html", "night.json"


@dataclass(frozen=True)
class IndexCase:
    """A case of a night; its throughput, its change, and its peak allocated bytes, which an out-of-memory run lacks."""

    name: str
    word: str
    style: Style
    tflops_per_gpu: float | None
    change: float | None
    peak_bytes: float | None


@dataclass(frozen=True)
class IndexNight:
    """What the index shows of ``report/night.json``."""

    suite: str
    outcome: str
    exit_code: int
    started_at: str
    shard: str
    num_runs_missing: int
    cases: tuple[IndexCase, ...]


def _night(read: dict[str, Any]) -> IndexNight:
    return IndexNight(
        suite=read["suite"],
        outcome=read["outcome"],
        exit_code=read["exit_code"],
        started_at=read["started_at"],
        shard=read["shard"] or "",
        num_runs_missing=read["num_runs_missing"],
        cases=tuple(_case(case) for case in read["cases"]),
    )


def _case(read: dict[str, Any]) -> IndexCase:
    finding: dict[str, Any] = next((row for row in read["comparison"] if row["metric"] == SPEED), {})
    speed, peak = read["speed"] or {}, (read["metrics"] or {}).get("peak_allocated_bytes") or {}
    word = "refused" if read["refused"] else read["outcome"]
    return IndexCase(
        name=read["name"],
        word=marked(word, is_infrastructure=read["is_infrastructure"], is_expected=read["is_expected"]),
        style=outcome_style(read["outcome"], is_expected=read["is_expected"]),
        tflops_per_gpu=finding.get("current") or speed.get(SPEED),
        change=finding.get("change"),
        peak_bytes=None if read["outcome"] == "oom" else peak.get("value"),
    )


@dataclass(frozen=True)
class NightEntry:
    """A folder of a night. ``night`` is None if it cannot be shown; ``problem`` is the reason."""

    folder: Path
    night: IndexNight | None
    problem: str = ""

    @property
    def page(self) -> Path | None:
        """Return the night's own page; None where there is none."""
        path = self.folder / PAGE
        return path if path.is_file() else None


def read_nights(nights_dir: Path) -> tuple[NightEntry, ...]:
    """Return every night below ``nights_dir``, newest first; skips other folders."""
    found = [path for path in folders(nights_dir) if (path / PLAN).exists() or (path / JUDGED).exists()]
    return tuple(_entry(folder) for folder in reversed(found))


def case_names(entries: Iterable[NightEntry]) -> tuple[str, ...]:
    """Return the columns: cases of the newest night first, then cases that only older nights had."""
    return tuple(dict.fromkeys(case.name for entry in entries if entry.night for case in entry.night.cases))


def _entry(folder: Path) -> NightEntry:
    try:
        return NightEntry(folder, _night(json.loads((folder / JUDGED).read_bytes())))
    except FileNotFoundError:
        return NightEntry(folder, None, "not judged: it is still running, or it ended early")
    except OSError as error:
        return NightEntry(folder, None, f"damaged: {JUDGED} cannot be read: {error.strerror}")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return NightEntry(folder, None, f"damaged: {JUDGED}: {error!r}")


INDEX = "index.html"


def write_index(nights_dir: Path, folder: Path) -> None:
    """Write ``index.html`` and the pages of all nights into ``folder``, which can then be copied anywhere.

    Pages of nights that are no longer in ``nights_dir`` stay. OSError if nothing can be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries = read_nights(nights_dir)
    for entry in entries:
        _copy_page(entry, folder)
    write_atomically(folder / INDEX, index_html(entries))


def index_html(entries: Sequence[NightEntry]) -> str:
    """Make the page: a table per suite, the suite with the newest night first; nights' pages are ``<night>.html``."""
    suites = grouped((entry.night.suite, (entry, entry.night)) for entry in entries if entry.night)
    bad = tuple(_problem(entry) for entry in entries if entry.night is None)
    tables = [Section(suite, (_table(nights),)) for suite, nights in suites.items()]
    about = (
        f"{counted(len(entries), 'night')}, the newest first. A cell shows TFLOP/s/GPU, its change from the golden, "
        "and the peak allocated memory of the worst rank. Each line runs from the oldest night to the newest."
    )
    return html(
        Page((*tables, *([Section("Without a verdict", (Listing(bad),))] if bad else [])), title="Nights", about=about)
    )


def page_name(entry: NightEntry) -> str:
    """Return the file of a night's page beside the index."""
    return f"{entry.folder.name}.html"


# Addresses of a night's runs, which do not travel with the page.
_RUN_LINK = re.compile(rb'<a href="\.\./[^"<>]*">([^<]*)</a>')


def _copy_page(entry: NightEntry, folder: Path) -> None:
    """Copy a page without its links to runs, which the copy would break."""
    if entry.page is None:
        return
    content, copy = _RUN_LINK.sub(rb"\1", entry.page.read_bytes()), folder / page_name(entry)
    if not copy.is_file() or copy.read_bytes() != content:
        write_atomically(copy, content)


def _table(entries: Sequence[tuple[NightEntry, IndexNight]]) -> Table:
    """The nights below a trend line per case, if at least two nights have its metric."""
    names = case_names(entry for entry, _ in entries)
    trends = [_trend_row(title, read, unit, entries, names) for title, read, unit in _TRENDS]
    rows = [row for row in trends if any(isinstance(cell, Span) and cell.trend for cell in row)]
    made = table(("Night", "Outcome", *names), [*rows, *(_row(entry, night, names) for entry, night in entries)])
    return replace(made, sticks=True)


_TRENDS: tuple[tuple[str, Callable[[IndexCase], float | None], Callable[[float], str]], ...] = (
    ("TFLOP/s/GPU", lambda case: case.tflops_per_gpu, format_rate),
    ("Peak memory", lambda case: case.peak_bytes, format_bytes),
)


def _trend_row(
    title: str,
    read: Callable[[IndexCase], float | None],
    unit: Callable[[float], str],
    entries: Sequence[tuple[NightEntry, IndexNight]],
    names: Sequence[str],
) -> list[Words]:
    nights = [{case.name: case for case in night.cases} for _, night in reversed(entries)]

    def cell(name: str) -> Words:
        values = tuple(read(night[name]) if name in night else None for night in nights)
        known = [value for value in values if value is not None]
        if len(known) < 2:
            return ""
        low, high = unit(min(known)), unit(max(known))
        between = low if low == high else f"{low} to {high}"
        text = f"{title} of {name} in {counted(len(known), 'night')}: {between}, newest {unit(known[-1])}"
        return Span("", beside=between, trend=values, trend_title=text)

    return [title, f"over {counted(len(nights), 'night')}", *(cell(name) for name in names)]


def _row(entry: NightEntry, night: IndexNight, names: Sequence[str]) -> list[Words]:
    link = quote(page_name(entry)) if entry.page else ""
    cases = {case.name: case for case in night.cases}
    shard = f" shard {night.shard}" if night.shard else ""
    due = f", {counted(night.num_runs_missing, 'run')} missing" if night.num_runs_missing else ""
    return [
        Span(f"{night.started_at[:16].replace('T', ' ')}{shard}", link=link),
        Span(f"{night.outcome} (exit {night.exit_code}{due})", outcome_style(night.outcome, is_expected=False)),
        *(_cell(cases.get(name), link) for name in names),
    ]


def _cell(case: IndexCase | None, link: str) -> Words:
    """Return the outcome above ``709.93 (-3.4 %), 58.02 GiB``."""
    if case is None:
        return ""
    change = "" if case.change is None else f" ({format_percent(case.change)})"
    figures = (
        "" if case.tflops_per_gpu is None else f"{format_rate(case.tflops_per_gpu)}{change}",
        "" if case.peak_bytes is None else format_bytes(case.peak_bytes),
    )
    place = f"{link}#{quote(anchor(case.name))}" if link else ""
    return Span(case.word, case.style, link=place, beside=", ".join(filter(None, figures)))


def _problem(entry: NightEntry) -> Line:
    """Say why a night cannot be shown, with a link to its page if there is one."""
    link = quote(page_name(entry)) if entry.page else ""
    return Line((Span(entry.folder.name, link=link), f": {entry.problem}"), "bad")
