"""The index of all nights as a page."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.nightly.show import anchor, outcome_style
from harness.nightly.words import SPEED, marked
from harness.records.folders import folders
from harness.records.store import write_atomically
from harness.show.figures import format_rate
from harness.show.html import html
from harness.show.page import Line, Listing, Page, Section, Span, Table, Words, table
from harness.units import counted, format_bytes, format_percent, grouped

JUDGED, PAGE, PLAN, INDEX = Path("report") / "night.json", Path("report") / "night.html", "night.json", "index.html"


@dataclass(frozen=True)
class NightEntry:
    """A folder of a night as a row: start and outcome, and a cell by the name of each case.

    ``problem``: why ``report/night.json`` cannot be shown; ``link``: the night's own page, empty where there is none.
    """

    folder: Path
    link: str
    suite: str = ""
    row: tuple[Words, Words] = ("", "")
    cells: Mapping[str, Words] = field(default_factory=dict)
    problem: str = ""


def read_nights(nights_dir: Path) -> tuple[NightEntry, ...]:
    """Return every night below ``nights_dir``, newest first; skips other folders."""
    found = [path for path in folders(nights_dir) if (path / PLAN).exists() or (path / JUDGED).exists()]
    return tuple(_entry(folder) for folder in reversed(found))


def _entry(folder: Path) -> NightEntry:
    link = quote(f"{folder.name}.html") if (folder / PAGE).is_file() else ""
    try:
        read = json.loads((folder / JUDGED).read_bytes())
        shard = f" shard {read['shard']}" if read["shard"] else ""
        due = f", {counted(read['num_runs_missing'], 'run')} missing" if read["num_runs_missing"] else ""
        start = Span(f"{read['started_at'][:16].replace('T', ' ')}{shard}", link=link)
        outcome = f"{read['outcome']} (exit {read['exit_code']}{due})"
        row = start, Span(outcome, outcome_style(read["outcome"], is_expected=False))
        return NightEntry(folder, link, read["suite"], row, {case["name"]: _cell(case, link) for case in read["cases"]})
    except FileNotFoundError:
        return NightEntry(folder, link, problem="not judged: it is still running, or it ended early")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return NightEntry(folder, link, problem=f"damaged: {JUDGED}: {error!r}")


def _cell(case: dict[str, Any], link: str) -> Words:
    """Return the outcome above ``709.93 (-3.4 %), 58.02 GiB``; a run that is out of memory has no peak."""
    finding: dict[str, Any] = next((row for row in case["comparison"] if row["metric"] == SPEED), {})
    speed, change = finding.get("current") or (case["speed"] or {}).get(SPEED), finding.get("change")
    peak = ((case["metrics"] or {}).get("peak_allocated_bytes") or {}).get("value")
    figures = (
        "" if speed is None else format_rate(speed) + ("" if change is None else f" ({format_percent(change)})"),
        "" if peak is None or case["outcome"] == "oom" else format_bytes(peak),
    )
    word = "refused" if case["refused"] else case["outcome"]
    return Span(
        marked(word, is_infrastructure=case["is_infrastructure"], is_expected=case["is_expected"]),
        outcome_style(case["outcome"], is_expected=case["is_expected"]),
        link=f"{link}#{quote(anchor(case['name']))}" if link else "",
        beside=", ".join(filter(None, figures)),
    )


# Addresses of a night's runs, which do not travel with the page.
_RUN_LINK = re.compile(rb'<a href="\.\./[^"<>]*">([^<]*)</a>')


def write_index(nights_dir: Path, folder: Path) -> None:
    """Write ``index.html`` and the pages of all nights into ``folder``, which can then be copied anywhere.

    Pages of nights that are no longer in ``nights_dir`` stay. OSError if nothing can be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries = read_nights(nights_dir)
    for entry in entries:
        if entry.link:
            page = _RUN_LINK.sub(rb"\1", (entry.folder / PAGE).read_bytes())
            write_atomically(folder / f"{entry.folder.name}.html", page)
    write_atomically(folder / INDEX, index_html(entries))


def index_html(entries: Sequence[NightEntry]) -> str:
    """Make the page: a table per suite, the suite with the newest night first; nights' pages are ``<night>.html``."""
    suites = grouped((entry.suite, entry) for entry in entries if not entry.problem)
    bad = [
        Line((Span(entry.folder.name, link=entry.link), f": {entry.problem}"), "bad")
        for entry in entries
        if entry.problem
    ]
    tables = [Section(suite, (_table(nights),)) for suite, nights in suites.items()]
    about = (
        f"{counted(len(entries), 'night')}, the newest first. A cell shows TFLOP/s/GPU, its change from the golden, "
        "and the peak allocated memory of the worst rank."
    )
    unread = [Section("Without a verdict", (Listing(tuple(bad)),))] if bad else []
    return html(Page((*tables, *unread), title="Nights", about=about))


def _table(entries: Iterable[NightEntry]) -> Table:
    """Return a row per night. The cases of the newest night come first, then those that only older nights had."""
    nights = tuple(entries)
    names = tuple(dict.fromkeys(name for entry in nights for name in entry.cells))
    rows = [(*entry.row, *(entry.cells.get(name, "") for name in names)) for entry in nights]
    return replace(table(("Night", "Outcome", *names), rows), sticks=True)
