"""Keeps history records on disk and adds runs to them."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness.errors import BadRequestError, Problems, RunFailedError
from harness.history.files import history_dir, history_files, history_path, read_record, started
from harness.history.record import HistoryRecord, history_record
from harness.judge.derive import derive
from harness.records.inventory import find_stored, runs_of
from harness.records.job import unsubmitted_job_of
from harness.records.run import RunRecord
from harness.records.store import RECORD, read_run, write_once
from harness.show.progress import counted_off
from harness.show.terminal import narration
from harness.units import first_line


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
    found, notes = list[HistoryRecord](), list[str]()
    for path in counted_off(narration(), "Reading history", history_files(history_dir(results), case)):
        try:
            found.append(read_record(path))
        except BadRequestError as error:
            notes.append(f"skipped: {first_line(error.message)}")
    wanted = [
        record
        for record in found
        if fingerprint in (None, record.fingerprint) and (since is None or started(record) >= since)
    ]
    return HistoryReading(tuple(sorted(wanted, key=lambda record: (started(record), record.run_id))), tuple(notes))


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
