"""Shows the runs, sweeps and nights of a results folder, and packs one to give away."""

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

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
from harness.showing.printing import Console, plain_table, print_hanging, print_lines, show
from harness.units import format_bytes, format_seconds

_STYLES = {"ok": "green", "finished": "green", "oom": "red", "failed": "red", "damaged": "red", "rejected": "red"}
_INDENT = 12


def print_inventory(console: Console, entries: Sequence[Stored], results: Path) -> None:
    """One line per run, sweep and night, oldest first, and what they weigh together."""
    if not entries:
        print_lines(console, [f"No run, sweep or night in {results}"])
        return
    table = plain_table("Id", "Kind", "Started", "State", "Size", "What", right=("Size",))
    for entry in entries:
        table.add_row(
            Text(entry.id), entry.kind, _when(entry), _state(entry), format_bytes(entry.num_bytes), Text(_short(entry))
        )
    show(console, table)
    print_lines(console, [f"{len(entries)} in {results}, {format_bytes(sum(entry.num_bytes for entry in entries))}"])


def run_figures(record: RunRecord) -> list[tuple[str, str]]:
    """Step time and peak of a run; of one that did not end well the peak so far."""
    metrics = derive(record)
    seconds, peak = metrics.step_time_s, metrics.peak_allocated_bytes
    least = "" if record.status == "ok" else "at least "
    return [
        ("Step time", f"{format_seconds(seconds.median)}, median of {seconds.n} steps" if seconds else ABSENT),
        ("Peak", f"{least}{format_bytes(peak.value)} allocated, rank {peak.rank}" if peak else ABSENT),
    ]


def print_entry(console: Console, entry: Stored, facts: Sequence[tuple[str, str]]) -> None:
    """One entry: what became of it, and ``facts`` by name, as of its figures or of who fills it."""
    print_lines(console, [f"{entry.kind} {entry.id}"])
    for name, value in (("Folder", str(entry.path)), ("Started", _when(entry)), ("Recipe", entry.recipe)):
        print_hanging(console, Text(f"{name:<{_INDENT}}{value or '-'}"), _INDENT)
    print_hanging(console, Text.assemble(f"{'State':<{_INDENT}}", _state(entry), f": {entry.detail}"), _INDENT)
    for name, value in facts:
        print_hanging(console, Text(f"{name:<{_INDENT}}{value}"), _INDENT)
    print_hanging(console, Text(f"{'Size':<{_INDENT}}{format_bytes(entry.num_bytes)}"), _INDENT)


def print_files(console: Console, files: Sequence[tuple[str, int]]) -> None:
    """The files of a run."""
    table = plain_table("File", "Size", right=("Size",))
    for name, size in files:
        table.add_row(Text(name), format_bytes(size))
    show(console, table)


def print_cells(console: Console, cells: Sequence[CellData]) -> None:
    """The cells of a sweep as they lie on disk, unjudged."""
    table = plain_table("Cell", "State", "Runs", "Why", right=("Runs",))
    for cell in cells:
        table.add_row(Text(cell.planned.name), outcome_of(cell), str(len(cell.runs)), Text(cell.reason))
    show(console, table)


def print_cases(console: Console, cases: Sequence[NightCase]) -> None:
    """The cases of a night as they lie on disk, unjudged."""
    table = plain_table("Case", "State", "Runs", "Why", right=("Runs",))
    for case in cases:
        done = sum(run.record is not None for run in case.runs)
        table.add_row(Text(case.planned.name), case_state(case), str(done), Text(case.planned.refused))
    show(console, table)


def print_ailments(console: Console, ailments: Sequence[tuple[str, Path, str, str]], results: Path) -> None:
    """Lines of (kind, path, what is not in order, what to do); one line when there are none."""
    if not ailments:
        print_lines(console, [f"{results}: nothing is out of order"])
    for kind, path, message, remedy in ailments:
        print_hanging(console, Text.assemble((f"{kind:<{_INDENT}}", "yellow"), f"{path}"), _INDENT)
        lines = (line.strip() for text in (message, remedy) for line in text.splitlines())
        for line in dict.fromkeys(lines):
            print_hanging(console, Text(f"{'':<{_INDENT}}{line}"), _INDENT)


def _when(entry: Stored) -> str:
    """Marked where it is the time of an import, as in history."""
    return entry.when if entry.is_start_known else f"{entry.when}?"


def _state(entry: Stored) -> Text:
    return Text(entry.state, style=_STYLES.get(entry.state, "yellow"))


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
