"""Files of history and their CSV export."""

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from os import DirEntry, scandir
from pathlib import Path

from harness.errors import BadRequestError
from harness.judging.metrics import METRICS
from harness.night.history.cases import CaseHistory
from harness.night.history.record import HistoryRecord
from harness.records.store import write_atomically
from harness.records.strict_json import read_document
from harness.showing.figures import Value, csv_text
from harness.units import counted, utc_time

HISTORY = "history"

_MONTH = re.compile(r"\d{6}")
_WRONG_CLOCKS = timedelta(hours=1)
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]*")

Stamp = tuple[int, int]  # time of the last change in ns, and bytes


def history_dir(results: Path) -> Path:
    """Where the history of a results folder lies, whether it is there or not."""
    return results / HISTORY


def history_path(results: Path, record: HistoryRecord) -> Path:
    """``history/<YYYYMM>/<run_id>.json``. BadRequestError for an id that is no file name or a start that is no time."""
    if not _RUN_ID.fullmatch(record.run_id):
        raise BadRequestError(
            f"run id {record.run_id!r}: not the name of a file", remedy="letters, digits and . _ - only"
        )
    return history_dir(results) / started(record).strftime("%Y%m") / f"{record.run_id}.json"


def started(record: HistoryRecord) -> datetime:
    """When the run started, in UTC. BadRequestError for what is no time."""
    try:
        return utc_time(record.started_at)
    except ValueError as error:
        raise BadRequestError(f"run {record.run_id}: started_at {record.started_at!r}: not an ISO-8601 time") from error


def is_ahead(record: HistoryRecord, now: datetime) -> bool:
    """Whether a run began later than clocks that are a little wrong explain."""
    return started(record) > now + _WRONG_CLOCKS


def history_stamps(folder: Path) -> dict[str, Stamp]:
    """Every record below ``folder`` as ``<YYYYMM>/<name>`` with its stamp; what writers have not finished is no record.

    BadRequestError for a folder that may not be read.
    """
    found: dict[str, Stamp] = {}
    for month in _entries(folder):
        if month.is_dir(follow_symlinks=False) and _MONTH.fullmatch(month.name):
            for entry in _entries(Path(month.path)):
                if entry.name.endswith(".json") and not entry.name.startswith("."):
                    found |= _stamp(f"{month.name}/{entry.name}", entry)
    return found


def _entries(folder: Path) -> list[DirEntry[str]]:
    try:
        with scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise BadRequestError(f"{folder}: cannot be read: {error.strerror}") from error


def _stamp(name: str, entry: DirEntry[str]) -> dict[str, Stamp]:
    """Nothing for a file that has vanished meanwhile."""
    try:
        stat = entry.stat()
    except FileNotFoundError:
        return {}
    return {name: (stat.st_mtime_ns, stat.st_size)}


def read_record(path: Path) -> HistoryRecord:
    """One file. BadRequestError for one that is damaged, newer than this program, or has no start in time."""
    record = read_document(path, HistoryRecord)
    started(record)
    return record


_Row = tuple[HistoryRecord, Callable[[str], float | None]]


def history_csv(history: CaseHistory, *, per_run: bool = False) -> tuple[str, tuple[str, ...]]:
    """One row per night that has the figure, or ``per_run`` one per run that counts; and notes on what was left out."""
    rows = _runs(history) if per_run else _nights(history)
    has = {metric.name: [read(metric.name) is not None for _, read in rows] for metric in METRICS}
    names = [name for name, present in has.items() if rows and all(present)]
    text = csv_text(["time", "commit", "branch", *names], [_values(row, names) for row in rows])
    return text, _notes(
        history, len(rows), [name for name, present in has.items() if any(present) and not all(present)]
    )


def write_csv(path: Path, text: str) -> Path:
    """Write it, replacing what is there. BadRequestError where it cannot be written."""
    try:
        write_atomically(path, text)
    except OSError as error:
        raise BadRequestError(f"--csv {path}: cannot be written: {error.strerror}") from error
    return path


def _nights(history: CaseHistory) -> list[_Row]:
    return [(night.last, night.value) for night, _ in history.measured]


def _runs(history: CaseHistory) -> list[_Row]:
    runs = (record for night, _ in history.measured for record in night.counted)
    return [(record, _of(record)) for record in runs if history.metric.name in record.metrics]


def _of(record: HistoryRecord) -> Callable[[str], float | None]:
    return lambda name: record.metrics[name].value if name in record.metrics else None


def _values(row: _Row, names: Sequence[str]) -> list[Value]:
    record, read = row
    return [started(record).isoformat(), record.git_commit, record.branch, *(read(name) for name in names)]


def _notes(history: CaseHistory, num_rows: int, partial: Sequence[str]) -> tuple[str, ...]:
    missing = len(history.series.nights) - len(history.measured)
    notes = []
    if partial:
        notes.append(f"not in the CSV, for some of its {num_rows} rows lack them: {', '.join(partial)}")
    if missing:
        notes.append(f"not in the CSV: {counted(missing, 'night')} without {history.metric.name}")
    return tuple(notes)
