"""Reads the files of history, and an index over them that makes ten thousand runs fast to query.

The files are the truth: an index that is missing, damaged or of another layout is made anew; names, times and sizes
show where it is behind. It is written like every other file, whole and renamed, and read without locks, so that it
also serves folders on NFS and any number of processes; the later of two writers wins, and nothing is lost.
"""

import re
import shutil
import sqlite3
import zlib
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from datetime import datetime, timedelta
from os import DirEntry, scandir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError

from harness.errors import BadRequestError
from harness.history.record import HistoryRecord
from harness.records.store import write_atomically
from harness.records.strict_json import read_document
from harness.units import utc_time

HISTORY = "history"

_MONTH = re.compile(r"\d{6}")
_WRONG_CLOCKS = timedelta(hours=1)
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]*")

Stamp = tuple[int, int]  # time of the last change in ns, and bytes


def history_dir(results: Path) -> Path:
    """Return the history folder of a results folder, which may not exist."""
    return results / HISTORY


def history_path(results: Path, record: HistoryRecord) -> Path:
    """Return ``history/<YYYYMM>/<run_id>.json``. BadRequestError if the id is no file name or the start no time."""
    if not _RUN_ID.fullmatch(record.run_id):
        raise BadRequestError(
            f"run id {record.run_id!r}: not the name of a file", remedy="letters, digits and . _ - only"
        )
    return history_dir(results) / started(record).strftime("%Y%m") / f"{record.run_id}.json"


def started(record: HistoryRecord) -> datetime:
    """Return when the run started, in UTC. BadRequestError if that is no time."""
    try:
        return utc_time(record.started_at)
    except ValueError as error:
        raise BadRequestError(f"run {record.run_id}: started_at {record.started_at!r}: not an ISO-8601 time") from error


def is_ahead(record: HistoryRecord, now: datetime) -> bool:
    """Return whether a run began in the future, by more than the usual error of clocks."""
    return started(record) > now + _WRONG_CLOCKS


def history_stamps(folder: Path) -> dict[str, Stamp]:
    """Return every record below ``folder`` as ``<YYYYMM>/<name>`` with its stamp, without unfinished files.

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
    """Return the stamp of a file; nothing if the file is gone by now."""
    try:
        stat = entry.stat()
    except FileNotFoundError:
        return {}
    return {name: (stat.st_mtime_ns, stat.st_size)}


def read_record(path: Path) -> HistoryRecord:
    """Read one record. BadRequestError if it is damaged, newer than this program, or has no valid start time."""
    record = read_document(path, HistoryRecord)
    started(record)
    return record


INDEX = "index.sqlite"

_LAYOUT = 3  # user_version of the file; counted up when the tables change
_TABLES = f"""
PRAGMA user_version = {_LAYOUT};
CREATE TABLE runs (name TEXT PRIMARY KEY, mtime_ns INTEGER, size INTEGER, place TEXT, fingerprint TEXT, packed BLOB);
CREATE INDEX stamps ON runs (name, mtime_ns, size);
CREATE INDEX places ON runs (place, fingerprint);
"""


class NoIndexError(Exception):
    """The index is missing or not usable."""


def indexed_stamps(folder: Path) -> dict[str, Stamp]:
    """Return the stamps in the index of ``folder``. NoIndexError if it is missing, damaged or of another layout."""
    rows = _rows(folder, "SELECT name, mtime_ns, size FROM runs")
    return {name: (mtime_ns, size) for name, mtime_ns, size in rows}


def indexed_records(
    folder: Path, case: str | None, fingerprint: str | None, without: Collection[str]
) -> list[HistoryRecord]:
    """Return unsorted records of a case and fingerprint, except the files ``without``. NoIndexError as above."""
    wanted = [(column, value) for column, value in (("place", case), ("fingerprint", fingerprint)) if value is not None]
    where = " AND ".join(f"{column} = ?" for column, _ in wanted) or "1"
    rows = _rows(folder, f"SELECT name, packed FROM runs WHERE {where}", *(value for _, value in wanted))  # noqa: S608
    try:
        return [HistoryRecord.model_validate_json(zlib.decompress(row)) for name, row in rows if name not in without]
    except (ValidationError, zlib.error) as error:
        raise NoIndexError(str(error)) from error


def update_index(
    folder: Path, fresh: Mapping[str, HistoryRecord], gone: Iterable[str], stamps: Mapping[str, Stamp], *, anew: bool
) -> None:
    """Replace the index by a copy with the ``fresh`` records by file name, without those ``gone``.

    ``anew``: from an empty one. OSError or sqlite3.Error if that fails.
    """
    rows = [
        (name, *stamps[name], each.case, each.fingerprint, zlib.compress(each.model_dump_json().encode(), level=1))
        for name, each in fresh.items()
    ]
    with TemporaryDirectory(prefix="mbr-perf-index-") as temporary:
        copy = Path(temporary) / INDEX
        if not anew:
            shutil.copyfile(folder / INDEX, copy)
        with closing(sqlite3.connect(copy)) as index, index:
            index.execute("PRAGMA journal_mode = OFF")
            if anew:
                index.executescript(_TABLES)
            index.executemany("DELETE FROM runs WHERE name = ?", [(name,) for name in gone])
            index.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?)", rows)
        write_atomically(folder / INDEX, copy.read_bytes())


def _rows(folder: Path, query: str, *values: str) -> list[tuple[Any, ...]]:
    # Immutable: the file is only ever replaced, so no locks are needed; some network file systems have none.
    where = f"file:{quote(str((folder / INDEX).absolute()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(where, uri=True)) as index:
            if index.execute("PRAGMA user_version").fetchone() != (_LAYOUT,):
                raise NoIndexError(f"{folder / INDEX}: of another layout")
            return index.execute(query, values).fetchall()
    except sqlite3.Error as error:
        raise NoIndexError(f"{folder / INDEX}: {error}") from error
