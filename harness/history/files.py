"""Finds and reads the files of history: one for each run, in the folder of its case."""

import os
import re
from datetime import datetime, timedelta
from pathlib import Path

from harness.errors import BadRequestError
from harness.history.record import HistoryRecord
from harness.records.strict_json import read_document
from harness.units import utc_time

HISTORY = "history"

_WRONG_CLOCKS = timedelta(hours=1)
_CASE = re.compile(r"[^./\0][^/\0]*/[^./\0][^/\0]*")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]*")


def history_dir(results: Path) -> Path:
    """Return the history folder of a results folder, which may not exist."""
    return results / HISTORY


def history_path(results: Path, record: HistoryRecord) -> Path:
    """Return ``history/<case>/<run_id>.json``. BadRequestError if the id is no file name or the start no time."""
    started(record)
    if not _RUN_ID.fullmatch(record.run_id):
        raise BadRequestError(
            f"run id {record.run_id!r}: not the name of a file", remedy="letters, digits and . _ - only"
        )
    return history_dir(results) / record.case / f"{record.run_id}.json"


def started(record: HistoryRecord) -> datetime:
    """Return when the run started, in UTC. BadRequestError if that is no time."""
    try:
        return utc_time(record.started_at)
    except ValueError as error:
        raise BadRequestError(f"run {record.run_id}: started_at {record.started_at!r}: not an ISO-8601 time") from error


def is_ahead(record: HistoryRecord, now: datetime) -> bool:
    """Return whether a run began in the future, by more than the usual error of clocks."""
    return started(record) > now + _WRONG_CLOCKS


def history_files(folder: Path, case: str | None = None) -> list[Path]:
    """Return the records below ``folder``, of one case or of all, without unfinished files.

    BadRequestError for a folder that may not be read.
    """

    def refuse(error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise BadRequestError(f"{error.filename}: cannot be read: {error.strerror}") from error

    if case is not None and not _CASE.fullmatch(case):  # whatever a user typed
        return []
    walked = os.walk(folder / (case or ""), onerror=refuse)
    paths = (Path(where, name) for where, _, names in walked for name in names)
    return sorted(path for path in paths if path.suffix == ".json" and not path.name.startswith("."))


def read_record(path: Path) -> HistoryRecord:
    """Read one record. BadRequestError if it is damaged, newer than this program, or has no valid start time."""
    record = read_document(path, HistoryRecord)
    started(record)
    return record
