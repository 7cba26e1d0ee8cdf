"""The index of all nights as a page."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.nightly.show import anchor, outcome_style
from harness.nightly.words import SPEED, marked
from harness.records.folders import folders
from harness.records.store import write_atomically
from harness.show.figures import format_rate
from harness.show.html import html
from harness.show.page import Line, Listing, Page, Section, Span, Table, Words, table
from harness.units import counted, format_bytes, format_percent, grouped

JUDGED, PAGE, PLAN = Path("report") / "night.json", Path("report") / "night.html", "night.json"


class _Lenient(BaseModel):
    """The parts of a report that the index needs; newer versions may write more."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class IndexFinding(_Lenient):
    """One metric tonight, and its change against the golden."""

    metric: str
    current: float | None = None
    change: float | None = None


class IndexSpeed(_Lenient):
    """The speed of a case, also of one without a golden."""

    tflops_per_gpu: float | None = None


class IndexPeak(_Lenient):
    """Bytes at the worst rank."""

    value: float | None = None


class IndexMetrics(_Lenient):
    """The peak of a case, also of one without a golden."""

    peak_allocated_bytes: IndexPeak | None = None


class IndexCase(_Lenient):
    """One case of a night."""

    name: str
    outcome: str
    exit_code: int
    is_expected: bool = False
    is_infrastructure: bool = False
    refused: str | None = None
    comparison: tuple[IndexFinding, ...] = ()
    speed: IndexSpeed | None = None
    metrics: IndexMetrics | None = None

    def finding(self, metric: str) -> IndexFinding:
        """Return the finding about that metric; an empty one if there is none."""
        return next((finding for finding in self.comparison if finding.metric == metric), IndexFinding(metric=metric))

    @property
    def tflops_per_gpu(self) -> float | None:
        """Return the throughput that the night's own page shows."""
        current = self.finding(SPEED).current
        return current if current is not None else self.speed.tflops_per_gpu if self.speed else None

    @property
    def peak_bytes(self) -> float | None:
        """Return the peak allocated bytes of the worst rank; None if the case ran out of memory, because it needed more."""
        if self.outcome == "oom" or self.metrics is None or self.metrics.peak_allocated_bytes is None:
            return None
        return self.metrics.peak_allocated_bytes.value


class IndexNight(_Lenient):
    """One night, as ``report/night.json`` has it."""

    suite: str
    title: str
    outcome: str
    exit_code: int
    started_at: str
    shard: str | None = None
    num_runs_missing: int = 0
    cases: tuple[IndexCase, ...]


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
        return NightEntry(folder, IndexNight.model_validate_json((folder / JUDGED).read_bytes()))
    except FileNotFoundError:
        return NightEntry(folder, None, "not judged: it is still running, or it ended early")
    except OSError as error:
        return NightEntry(folder, None, f"damaged: {JUDGED} cannot be read: {error.strerror}")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        return NightEntry(folder, None, f"damaged: {JUDGED}: {where}: {first['msg']}")


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
        f"{counted(len(entries), 'night')}, the newest first. A cell shows TFLOP/s/GPU, its change from the golden, and the "
        "peak allocated memory of the worst rank. Each line runs from the oldest night to the newest."
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
    cases: Mapping[str, IndexCase] = {case.name: case for case in night.cases}
    shard = f" shard {night.shard}" if night.shard else ""
    due = f", {counted(night.num_runs_missing, 'run')} missing" if night.num_runs_missing else ""
    return [
        Span(f"{night.started_at[:16].replace('T', ' ')}{shard}", link=link),
        Span(f"{night.outcome} (exit {night.exit_code}{due})", outcome_style(night.outcome, is_expected=False)),
        *(_cell(cases.get(name), link) for name in names),
    ]


def _cell(case: IndexCase | None, link: str) -> Words:
    if case is None:
        return ""
    word = "refused" if case.refused else case.outcome
    return Span(
        marked(word, is_infrastructure=case.is_infrastructure, is_expected=case.is_expected),
        outcome_style(case.outcome, is_expected=case.is_expected),
        link=f"{link}#{quote(anchor(case.name))}" if link else "",
        beside=_figures(case),
    )


def _figures(case: IndexCase) -> str:
    """Return ``709.93 (-3.4 %), 58.02 GiB``."""
    change = case.finding(SPEED).change
    parts = [
        "" if case.tflops_per_gpu is None else format_rate(case.tflops_per_gpu),
        "" if change is None else f"({format_percent(change)})",
    ]
    memory = "" if case.peak_bytes is None else format_bytes(case.peak_bytes)
    return ", ".join(filter(None, (" ".join(filter(None, parts)), memory)))


def _problem(entry: NightEntry) -> Line:
    """Say why a night cannot be shown, with a link to its page if there is one."""
    link = quote(page_name(entry)) if entry.page else ""
    return Line((Span(entry.folder.name, link=link), f": {entry.problem}"), "bad")
