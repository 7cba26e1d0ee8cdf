"""JSON of a results folder, and of this machine."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from harness.launch.processes import Life
from harness.measure.software_fit import Line
from harness.records.inventory import State, Stored, case_state, outcome_of
from harness.records.night import NightCase
from harness.records.sweep import CellData
from harness.results.export import Sent
from harness.results.housekeeping import Kind
from harness.show.json import Document, Shown, Text, at


class EntryRow(Shown):
    """One run, sweep or night."""

    kind: Literal["run", "sweep", "night"]
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
    """``mbr-perf results show --json``. ``process``: the process that fills the folder, null if the folder is complete."""

    process: Life | None
    files: tuple[FileRow, ...]
    cells: tuple[PartRow, ...]
    cases: tuple[PartRow, ...]


def entry_document(
    entry: Stored,
    life: Life,
    files: Iterable[tuple[str, int]],
    cells: Iterable[CellData],
    cases: Iterable[NightCase],
) -> EntryDocument:
    """Return the document; ``cells`` are those of a sweep, ``cases`` those of a night."""
    return EntryDocument.of(
        entry,
        process=None if entry.is_committed else life,
        files=[FileRow(path=name, bytes=size) for name, size in files],
        cells=[
            PartRow.of(cell.planned, state=outcome_of(cell), reason=cell.reason, runs=[run.run_id for run in cell.runs])
            for cell in cells
        ],
        cases=[
            PartRow.of(case.planned, state=case_state(case), reason=case.planned.refused,
                       runs=[run.record.run_id for run in case.runs if run.record])
            for case in cases
        ],
    )  # fmt: skip


class AilmentRow(Shown):
    """One problem. ``process``: whether the process that filled the folder still runs."""

    kind: Kind
    path: Path
    message: str
    remedy: str
    process: Literal["alive", "dead", "unknown"] = at("life", "state")
    moved_to: Path | None


class AilmentsDocument(Document):
    """``mbr-perf results doctor --json``."""

    results_dir: Path
    ailments: tuple[AilmentRow, ...]
    exit_code: int


class ArchiveDocument(Document):
    """``mbr-perf results archive --json``."""

    path: Path
    files: int = at("num_files")
    bytes: int = at("num_bytes")
    left_out: tuple[str, ...]


class ExportDocument(Document):
    """``mbr-perf results export --json``."""

    to: str
    project: str
    runs: tuple[Sent, ...]


class MachineDocument(Document):
    """``mbr-perf doctor --json``."""

    lines: tuple[Line, ...]
    exit_code: int
