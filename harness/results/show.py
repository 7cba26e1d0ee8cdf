"""Shows the runs, sweeps, nights and bisects of a results folder."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.judge.derive import derive
from harness.launch.processes import Life, life_of
from harness.records.inventory import State, Stored, case_state, file_sizes, outcome_of
from harness.records.night import read_night
from harness.records.references import Kind
from harness.records.run import RunRecord
from harness.records.sweep import read_sweep
from harness.show.figures import ABSENT
from harness.show.json import Document, Shown, Text, at
from harness.show.page import GAP, Column, Facts, Page, Span, Table, Words, style_of, table, tabled
from harness.units import counted, first_line, format_bytes, format_seconds


class EntryRow(Shown):
    """One run, sweep, night or bisect."""

    kind: Kind
    id: str
    path: Path
    started_at: Text = at("when")
    is_start_known: bool
    recipe: Text
    state: State
    detail: str
    bytes: int = at("num_bytes")


class InventoryDocument(Document):
    """``mbr-perf results list --json``."""

    results_dir: Path
    entries: tuple[EntryRow, ...]


class FileRow(Shown):
    """One file, its path relative to the folder."""

    path: str
    bytes: int


class PartRow(Shown):
    """A cell of a sweep or a case of a night as stored, without a verdict."""

    name: str
    state: str
    reason: str
    runs: tuple[str, ...]


class EntryDocument(EntryRow, Document):
    """``mbr-perf results show --json``. ``process``: the one that fills the folder, null if the folder is complete."""

    process: Life | None
    files: tuple[FileRow, ...]
    cells: tuple[PartRow, ...]
    cases: tuple[PartRow, ...]


def observed(entry: Stored) -> Stored:
    """Return the entry with the state ``running`` if a process of this machine is filling its folder."""
    is_open = entry.state in ("incomplete", "unfinished")
    return replace(entry, state="running") if is_open and life_of(entry.path).state == "alive" else entry


def entry_document(entry: Stored) -> EntryDocument:
    """Read the files and the cells or cases of an entry."""
    is_read = entry.state in ("finished", "running", "unfinished")
    cells = read_sweep(entry.path).cells if is_read and entry.kind == "sweep" else ()
    cases = read_night(entry.path).cases if is_read and entry.kind == "night" else ()
    return EntryDocument.of(
        entry,
        process=None if entry.is_committed else life_of(entry.path),
        files=[FileRow(path=name, bytes=size) for name, size in file_sizes(entry.path)],
        cells=[
            PartRow.of(cell.planned, state=outcome_of(cell), reason=cell.reason, runs=[run.run_id for run in cell.runs])
            for cell in cells
        ],
        cases=[
            PartRow.of(
                case.planned,
                state=case_state(case),
                reason=case.planned.refused,
                runs=[run.record.run_id for run in case.runs if run.record],
            )
            for case in cases
        ],
    )


def inventory_page(entries: Sequence[Stored], results: Path) -> Page:
    """Return one line per run, sweep, night and bisect, oldest first, and their total size."""
    if not entries:
        return Page((), answer=f"No run, sweep, night or bisect in {results}")
    columns = [
        (Column("Id"), lambda entry: entry.id),
        (Column("Kind", drop=1), lambda entry: entry.kind),
        (Column("Started", drop=2), lambda entry: entry.when + "?" * (not entry.is_start_known)),
        (Column("State"), lambda entry: _state(entry.state)),
        (Column("Size", right=True, drop=3), lambda entry: format_bytes(entry.num_bytes)),
        (Column("Summary", long=True), lambda entry: first_line(entry.detail)),
    ]
    kinds = ", ".join(counted(n, kind) for kind, n in Counter(entry.kind for entry in entries).items())
    total = format_bytes(sum(entry.num_bytes for entry in entries))
    return Page((tabled(entries, columns),), answer=f"{kinds} in {results}, {total}")


def run_figures(record: RunRecord) -> list[tuple[str, str]]:
    """Return step time and peak of a run; the peak so far if it did not end well."""
    metrics = derive(record)
    seconds, peak = metrics.step_time_s, metrics.peak_allocated_bytes
    least = "" if record.status == "ok" else "at least "
    return [
        ("Step time", f"{format_seconds(seconds.median)}, median of {seconds.n} steps" if seconds else ABSENT),
        ("Peak", f"{least}{format_bytes(peak.value)} allocated, rank {peak.rank}" if peak else ABSENT),
    ]


def entry_page(entry: EntryDocument, facts: Sequence[tuple[str, str]]) -> Page:
    """Return the outcome, ``facts`` by name (metrics or process), and the cells, cases or files."""
    about: tuple[tuple[str, Words], ...] = (
        ("Folder", str(entry.path)),
        ("Started", (entry.started_at or "-") + ("" if entry.is_start_known else "?")),
        *([("Recipe", entry.recipe)] if entry.recipe else []),
        ("State", (_state(entry.state), f": {entry.detail}")),
        *facts,
        ("Size", format_bytes(entry.bytes)),
    )
    return Page((Facts(about, 12), GAP, _parts(entry)), answer=(f"{entry.kind} {entry.id}: ", _state(entry.state)))


def _parts(entry: EntryDocument) -> Table:
    if parts := (*entry.cells, *entry.cases):
        rows = [(part.name, part.state, str(len(part.runs)), part.reason) for part in parts]
        return table(("Cell" if entry.cells else "Case", "State", "Runs", "Why"), rows, right=("Runs",))
    return table(("File", "Size"), [(file.path, format_bytes(file.bytes)) for file in entry.files], right=("Size",))


def _state(state: str) -> Span:
    return Span(state, style_of(state, "doubt"))
