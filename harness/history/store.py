"""Keeps the runs of history in one append-only sqlite file, and adds runs to it."""

import errno
import fcntl
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from harness.errors import BadRequestError, Problems, RunFailedError
from harness.history.record import HistoryRecord, history_record, started
from harness.judge.derive import derive
from harness.records.inventory import find_stored, runs_of
from harness.records.run import RunRecord, Status
from harness.records.store import RECORD, read_run
from harness.records.strict_json import parse_document
from harness.show.json import Shown
from harness.units import first_line

HISTORY = "history"
_PATIENCE_S = 30.0
_WRONG_CLOCKS = timedelta(hours=1)
_TABLE = """CREATE TABLE IF NOT EXISTS runs (
  run_id TEXT PRIMARY KEY, name TEXT, fingerprint TEXT, started REAL, record TEXT)"""
_QUERY = """SELECT run_id, record FROM runs
  WHERE ifnull(?, name) = name AND ifnull(?, fingerprint) = fingerprint ORDER BY started, run_id"""
_REMEDY = "see that disk, quota and permissions allow it, or name another folder with --results_dir"


@dataclass(frozen=True)
class HistoryReading:
    """The records of history, oldest first. ``notes``: which runs were skipped and why, and other remarks."""

    records: tuple[HistoryRecord, ...]
    notes: tuple[str, ...] = ()


def history_file(results: Path) -> Path:
    """Return the file that holds the history of a results folder; it may not exist."""
    return results / HISTORY / "runs.sqlite"


@contextmanager
def _opened(path: Path, mode: str, patience_s: float) -> Iterator[sqlite3.Connection]:
    """Open the file with sqlite's rollback journal, which also works on NFS. RunFailedError for what sqlite reports."""
    try:
        where = f"{path.absolute().as_uri()}?mode={mode}"
        with closing(sqlite3.connect(where, uri=True, timeout=patience_s, isolation_level=None)) as base:
            yield base
    except sqlite3.OperationalError as error:
        failed = "read" if mode == "ro" else "written"
        raise RunFailedError(f"{path}: cannot be {failed}: {error}", remedy=_REMEDY) from error
    except sqlite3.Error as error:
        raise RunFailedError(
            f"{path}: damaged: {error}",
            remedy="move it away; `mbr-perf history add` of the folders in runs, sweeps and nights makes a new one",
        ) from error


@contextmanager
def _only_writer(path: Path, patience_s: float) -> Iterator[None]:
    """Hold ``path``. The kernel releases it however the process ends. RunFailedError if another process keeps it."""
    end = time.monotonic() + patience_s
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("a")
    except OSError as error:
        raise RunFailedError(f"{path}: cannot be written: {error.strerror}", remedy=_REMEDY) from error
    with lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                is_held = error.errno in (errno.EAGAIN, errno.EACCES)
                if not is_held or time.monotonic() > end:
                    reason = "another process is writing history" if is_held else error.strerror
                    raise RunFailedError(f"{path}: cannot be locked: {reason}", remedy="try again later") from error
            time.sleep(0.05)
        yield


def write_history(
    results: Path, records: Sequence[HistoryRecord], patience_s: float = _PATIENCE_S
) -> tuple[HistoryRecord, ...]:
    """Add the records, all or none; return what history now holds of each. RunFailedError: not written, or busy."""
    rows = [(each.run_id, each.case, each.fingerprint, started(each).timestamp(), each.model_dump_json())
            for each in records]  # fmt: skip
    path = history_file(results)
    with _only_writer(path.with_suffix(".lock"), patience_s), _opened(path, "rwc", patience_s) as base:
        base.execute("BEGIN IMMEDIATE")
        base.execute(_TABLE)
        base.executemany("INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?, ?)", rows)
        found = [base.execute("SELECT run_id, record FROM runs WHERE run_id = ?", row[:1]).fetchone() for row in rows]
        base.execute("COMMIT")
    return tuple(_read(path, *row) for row in found)


def _read(path: Path, run_id: str, text: str) -> HistoryRecord:
    """Read one record. BadRequestError if it is damaged, newer than this program, or has no valid start time."""
    record = parse_document(text, f"{path}: run {run_id}", HistoryRecord)
    started(record)
    return record


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0  # the first writer was killed before it finished
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError as error:
        raise RunFailedError(f"{path}: cannot be read: {error.strerror}", remedy=_REMEDY) from error


def require_sound(results: Path) -> None:
    """Raise RunFailedError if any part of history cannot be read: later, that would cost a night its verdict."""
    path = history_file(results)
    if not _is_empty(path):
        with _opened(path, "ro", _PATIENCE_S) as base:
            if (found := base.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(found)


def read_history(results: Path, case: str | None = None, fingerprint: str | None = None) -> tuple[HistoryRecord, ...]:
    """Return the records of :func:`survey_history`, without its notes."""
    return survey_history(results, case, fingerprint).records


def survey_history(
    results: Path,
    case: str | None = None,
    fingerprint: str | None = None,
    patience_s: float = _PATIENCE_S,
) -> HistoryReading:
    """Read the runs of a case, by start; the notes name skipped ones. RunFailedError for a damaged file."""
    path, notes = history_file(results), list[str]()
    if _is_empty(path):
        return HistoryReading(())
    with _opened(path, "ro", patience_s) as base:
        rows = base.execute(_QUERY, (case, fingerprint)).fetchall()
    found, latest = list[HistoryRecord](), datetime.now(UTC) + _WRONG_CLOCKS
    for run_id, text in rows:
        try:
            record = _read(path, run_id, text)
        except BadRequestError as error:
            notes.append(f"skipped: {first_line(error.message)}")
            continue
        if started(record) > latest:
            notes.append(f"skipped: {path}: run {run_id}: started_at {record.started_at!r} is in the future")
        else:
            found.append(record)
    return HistoryReading(tuple(found), tuple(notes))


class Addition(Shown):
    """A requested run. ``added`` False: history already had it, and keeps its record unchanged."""

    run_id: str
    case: str
    status: Status
    suspect: tuple[str, ...]
    path: Path
    added: bool


def add_runs(references: Sequence[str], results: Path) -> tuple[Addition, ...]:
    """Add each named run once; of a sweep or a night, all. BadRequestError; RunFailedError for another of its id."""
    problems, runs = Problems(), dict[str, RunRecord]()
    for reference in references:
        with problems.collecting():
            runs |= {run.run_id: run for run in _runs(reference, results)}
    problems.raise_if_any()
    records = [history_record(run, derive(run)) for run in runs.values()]
    had = {record.run_id for record in read_history(results)}
    kept = write_history(results, records)
    for record, there in zip(records, kept, strict=True):
        if (there.fingerprint, there.started_at) != (record.fingerprint, record.started_at):
            raise RunFailedError(f"{history_file(results)}: has another run {record.run_id}, and never changes a run")
    return tuple(Addition.of(record, path=history_file(results), added=record.run_id not in had) for record in kept)


def _runs(reference: str, results: Path) -> Iterable[RunRecord]:
    if Path(reference).is_file():
        return (read_run(reference),)
    stored = find_stored(reference, results)
    runs = [run for _, run in runs_of(stored)]
    if not runs:
        raise BadRequestError(f"{stored.path}: no run of it was committed ({RECORD})")
    return runs
