"""Keeps history records on disk and adds runs to them."""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness.errors import BadRequestError, Problems, RunFailedError
from harness.history.files import (
    NoIndexError,
    Stamp,
    history_dir,
    history_path,
    history_stamps,
    indexed_records,
    indexed_stamps,
    read_record,
    started,
    update_index,
)
from harness.history.record import HistoryRecord, history_record
from harness.judge.derive import derive
from harness.records.inventory import find_stored, runs_of
from harness.records.job import unsubmitted_job_of
from harness.records.run import RunRecord
from harness.records.store import RECORD, read_run, write_once
from harness.show.progress import counted_off
from harness.show.terminal import narration
from harness.units import counted, first_line


@dataclass(frozen=True)
class HistoryReading:
    """The records of history, oldest first. ``notes``: which files were skipped and why, and other remarks."""

    records: tuple[HistoryRecord, ...]
    notes: tuple[str, ...] = ()


def write_history(results: Path, record: HistoryRecord) -> Path:
    """Write the record of one run; the same record again changes nothing. Safe against kills and concurrent writers.

    RunFailedError where the run is kept with other content, and where nothing can be written.
    """
    path = history_path(results, record)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_once(path, record.model_dump_json(indent=1) + "\n")
    except FileExistsError as error:
        with suppress(BadRequestError):
            if read_record(path) == record:
                return path
        raise RunFailedError(
            f"{path}: exists with other content, and mbr-perf never overwrites history",
            remedy="move that file away first if it is wrong",
        ) from error
    except OSError as error:
        raise RunFailedError(
            f"{path}: cannot be written: {error.strerror}", remedy="name a writable folder with --results_dir"
        ) from error
    return path


def read_history(results: Path, case: str | None = None, fingerprint: str | None = None) -> tuple[HistoryRecord, ...]:
    """Return the records of :func:`survey_history`, without its notes."""
    return survey_history(results, case, fingerprint).records


def survey_history(
    results: Path, case: str | None = None, fingerprint: str | None = None, since: datetime | None = None
) -> HistoryReading:
    """Read the runs below ``results`` of one case and fingerprint, started at or after ``since`` (with time zone).

    A file that is damaged or newer than this program is named in the notes and skipped. Sorted by start, then id.
    """
    folder = history_dir(results)
    stamps = history_stamps(folder)
    try:
        known = indexed_stamps(folder)
        changed = {name for name, stamp in stamps.items() if known.get(name) != stamp}
        gone, anew = known.keys() - stamps.keys(), False
        kept = indexed_records(folder, case, fingerprint, without=changed | gone)
    except NoIndexError:
        kept, known, changed, gone, anew = [], {}, set(stamps), set(), True
    fresh, notes = _read_files(folder, changed)
    # A file that cannot be read is tried anew each time: a newer program may read it.
    stale = gone | (changed & known.keys()) - fresh.keys()
    if fresh or stale:
        notes += _updated(folder, fresh, stale, stamps, anew=anew)
    wanted = [
        (when, record.run_id, record)
        for record in (*kept, *fresh.values())
        if case in (None, record.case) and fingerprint in (None, record.fingerprint)
        if (when := started(record)) and (since is None or when >= since)
    ]
    return HistoryReading(tuple(record for *_, record in sorted(wanted, key=lambda item: item[:2])), notes)


def _read_files(folder: Path, names: Iterable[str]) -> tuple[dict[str, HistoryRecord], tuple[str, ...]]:
    found, notes = dict[str, HistoryRecord](), list[str]()
    for name in counted_off(narration(), "Reading history", sorted(names)):
        try:
            found[name] = read_record(folder / name)
        except BadRequestError as error:
            notes.append(f"skipped: {first_line(error.message)}")
    return found, tuple(notes)


def _updated(
    folder: Path,
    fresh: Mapping[str, HistoryRecord],
    stale: Iterable[str],
    stamps: Mapping[str, Stamp],
    *,
    anew: bool,
) -> tuple[str, ...]:
    """Update the index. Return a note if it cannot be written: history is complete without it, only slower."""
    try:
        update_index(folder, fresh, stale, stamps, anew=anew)
    except (OSError, sqlite3.Error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        return (
            f"{counted(len(fresh), 'file')} read one by one, because mbr-perf cannot write an index in {folder}: {why}",
        )
    return ()


@dataclass(frozen=True)
class Addition:
    """A requested run. ``is_new`` False: history already had it, and keeps its record unchanged."""

    record: HistoryRecord
    path: Path
    is_new: bool


def add_runs(references: Sequence[str], results: Path) -> tuple[Addition, ...]:
    """Add each named run (folder, record file or id) once; of a sweep or a night, all of its committed runs.

    All are read before the first is kept. BadRequestError with every reference that means no run; RunFailedError where
    nothing can be written.
    """
    problems, runs = Problems(), dict[str, RunRecord]()
    for reference in references:
        with problems.collecting():
            runs |= {run.run_id: run for run in _runs(reference, results)}
    problems.raise_if_any()
    return tuple(_added(run, results) for run in runs.values())


def _runs(reference: str, results: Path) -> Iterable[RunRecord]:
    if Path(reference).is_file():
        return (read_run(reference),)
    stored = find_stored(reference, results)
    job_dir = unsubmitted_job_of(stored.path) if stored.state == "incomplete" else None
    if job_dir is not None:
        raise BadRequestError(f"{stored.path}: not submitted yet", remedy=f"mbr-perf jobs submit {job_dir}")
    runs = [run for _, run in runs_of(stored)]
    if not runs:
        raise BadRequestError(f"{stored.path}: no run of it was committed ({RECORD})")
    return runs


def _added(run: RunRecord, results: Path) -> Addition:
    record = history_record(run, derive(run))
    path = history_path(results, record)
    if path.is_file():
        kept = read_record(path)
        if (kept.fingerprint, kept.started_at) == (record.fingerprint, record.started_at):
            return Addition(kept, path, is_new=False)
    return Addition(record, write_history(results, record), is_new=True)
