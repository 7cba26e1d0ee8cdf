"""History on disk: one small file per run, written once, read back by case in order of time."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness.errors import BadRequestError, RunFailedError
from harness.records.atomic import write_once
from harness.records.history import HistoryRecord
from harness.records.history_files import history_dir, history_path, history_stamps, read_record, started


@dataclass(frozen=True)
class HistoryReading:
    """What history says, oldest first. ``notes``: files that were skipped and why, and how else it was read."""

    records: tuple[HistoryRecord, ...]
    notes: tuple[str, ...] = ()


def write_history(results: Path, record: HistoryRecord) -> Path:
    """Keep one run; the same record again changes nothing. Safe against kills and any number of writers.

    Write what a night says of a run only once the night is over: RunFailedError where the run is kept with other content,
    and where nothing can be written.
    """
    path = history_path(results, record)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_once(path, record.model_dump_json(indent=1) + "\n")
    except FileExistsError as error:
        if not _holds(path, record):
            raise RunFailedError(
                f"{path}: is there already with other content, and history is never overwritten",
                remedy="move that file away first if it is wrong",
            ) from error
    except OSError as error:
        raise RunFailedError(
            f"{path}: cannot be written: {error.strerror}", remedy="name a writable folder with --results_dir"
        ) from error
    return path


def read_history(
    results: Path, case: str | None = None, fingerprint: str | None = None, since: datetime | None = None
) -> tuple[HistoryRecord, ...]:
    """The records of :func:`survey_history`, without its notes."""
    return survey_history(results, case, fingerprint, since).records


def survey_history(
    results: Path, case: str | None = None, fingerprint: str | None = None, since: datetime | None = None
) -> HistoryReading:
    """Runs kept below ``results``, of one case and one fingerprint, started at or after ``since`` (with its time zone).

    A file that is damaged or newer than this program is named in the notes and skipped. Sorted by start, then id.
    """
    folder = history_dir(results)
    found, notes = list[HistoryRecord](), list[str]()
    for name in sorted(history_stamps(folder)):
        try:
            found.append(read_record(folder / name))
        except BadRequestError as error:
            notes.append(f"skipped: {error.message.splitlines()[0]}")
    kept = (
        record
        for record in found
        if case in (None, record.case)
        and fingerprint in (None, record.fingerprint)
        and (since is None or started(record) >= since)
    )
    return HistoryReading(tuple(sorted(kept, key=lambda one: (started(one), one.run_id))), tuple(notes))


def _holds(path: Path, record: HistoryRecord) -> bool:
    try:
        return read_record(path) == record
    except BadRequestError:
        return False
