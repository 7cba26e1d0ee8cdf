"""Shows the runs, sweeps and nights of a results folder, and packs one to give away."""

from collections.abc import Sequence
from pathlib import Path

from harness.errors import BadRequestError
from harness.judging.derive import derive
from harness.launch.processes import life_of
from harness.records.archive import Archived
from harness.records.archive import archive as write_archive
from harness.records.inventory import FOLDERS, Stored, case_state, find_stored, outcome_of
from harness.records.night import NightCase
from harness.records.redact import Places
from harness.records.run import RunRecord
from harness.records.store import checkout_dir, results_dir
from harness.records.sweep import CellData
from harness.showing.figures import ABSENT
from harness.showing.page import Block, Column, Facts, Line, Page, Span, Table, Words, style_of, table, tabled
from harness.units import format_bytes, format_seconds

_INDENT = 12


def inventory_page(entries: Sequence[Stored], results: Path) -> Page:
    """One line per run, sweep and night, oldest first, and what they weigh together."""
    if not entries:
        return Page((f"No run, sweep or night in {results}",))
    columns = [
        (Column("Id"), lambda entry: entry.id),
        (Column("Kind"), lambda entry: entry.kind),
        (Column("Started"), _when),
        (Column("State"), _state),
        (Column("Size", right=True), lambda entry: format_bytes(entry.num_bytes)),
        (Column("What", long=True), _short),
    ]
    total = format_bytes(sum(entry.num_bytes for entry in entries))
    return Page((tabled(entries, columns), f"{len(entries)} in {results}, {total}"))


def run_figures(record: RunRecord) -> list[tuple[str, str]]:
    """Step time and peak of a run; of one that did not end well the peak so far."""
    metrics = derive(record)
    seconds, peak = metrics.step_time_s, metrics.peak_allocated_bytes
    least = "" if record.status == "ok" else "at least "
    return [
        ("Step time", f"{format_seconds(seconds.median)}, median of {seconds.n} steps" if seconds else ABSENT),
        ("Peak", f"{least}{format_bytes(peak.value)} allocated, rank {peak.rank}" if peak else ABSENT),
    ]


def entry_page(
    entry: Stored,
    facts: Sequence[tuple[str, str]],
    files: Sequence[tuple[str, int]],
    cells: Sequence[CellData],
    cases: Sequence[NightCase],
) -> Page:
    """What became of it, ``facts`` by name, as of its figures or of who fills it, and its cells, cases or else files."""
    about: tuple[tuple[str, Words], ...] = (
        ("Folder", str(entry.path)),
        ("Started", _when(entry) or "-"),
        ("Recipe", entry.recipe or "-"),
        ("State", (_state(entry), f": {entry.detail}")),
        *facts,
        ("Size", format_bytes(entry.num_bytes)),
    )
    return Page((f"{entry.kind} {entry.id}", Facts(about, _INDENT), _parts(files, cells, cases)))


def _parts(files: Sequence[tuple[str, int]], cells: Sequence[CellData], cases: Sequence[NightCase]) -> Table:
    """The cells or cases as they lie on disk, unjudged."""
    columns = ("State", "Runs", "Why")
    if cells:
        rows = [(one.planned.name, outcome_of(one), str(len(one.runs)), one.reason) for one in cells]
        return table(("Cell", *columns), rows, right=("Runs",))
    if cases:
        done = [(case, sum(run.record is not None for run in case.runs)) for case in cases]
        rows = [(case.planned.name, case_state(case), str(num), case.planned.refused) for case, num in done]
        return table(("Case", *columns), rows, right=("Runs",))
    return table(("File", "Size"), [(name, format_bytes(size)) for name, size in files], right=("Size",))


def ailments_page(ailments: Sequence[tuple[str, Path, str, str]], results: Path) -> Page:
    """Lines of (kind, path, what is not in order, what to do); one line when there are none."""
    blocks: list[Block] = []
    for kind, path, message, remedy in ailments:
        lines = (line.strip() for text in (message, remedy) for line in text.splitlines())
        blocks.append(Line((Span(f"{kind:<{_INDENT}}", "doubt"), str(path)), hang=_INDENT))
        blocks.append(Facts(tuple(("", line) for line in dict.fromkeys(lines)), _INDENT))
    return Page(tuple(blocks) or (f"{results}: nothing is out of order",))


def _when(entry: Stored) -> str:
    """Marked where it is the time of an import, as in history."""
    return entry.when if entry.is_start_known else f"{entry.when}?"


def _state(entry: Stored) -> Span:
    return Span(entry.state, style_of(entry.state, "doubt"))


def _short(entry: Stored) -> str:
    """The first line; failures carry the words of libraries."""
    return entry.detail.strip().splitlines()[0] if entry.detail.strip() else ""


def give(reference: str, target: Path, results: Path | None, *, max_bytes: int) -> Archived:
    """Archive what ``reference`` means. BadRequestError while a process is filling it, and as `archive` says."""
    folder = results_dir(results)
    entry = find_stored(reference, folder)
    life = life_of(entry.path)
    if entry.state in ("incomplete", "unfinished") and life.state == "alive":
        raise BadRequestError(f"{entry.id}: {life.reason}", remedy="archive it when it has ended")
    own = entry.path.parents[1] if entry.path.parent.name in FOLDERS else None  # also of another results folder
    known = ((entry.path, entry.id), (own, "RESULTS"), (folder, "RESULTS"), (checkout_dir(), "CHECKOUT"))
    return write_archive(entry.path, target, Places.of((*known, (Path.home(), "~"))), max_bytes=max_bytes)
