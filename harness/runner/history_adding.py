"""Ad-hoc runs and sweeps taken into history."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis.derive import derive
from harness.analysis.history.record import history_record
from harness.errors import BadRequestError
from harness.recipes.problems import Problems
from harness.records.histories import write_history
from harness.records.history import HistoryRecord
from harness.records.history_files import history_path, read_record
from harness.records.inventory import find_stored
from harness.records.jobs import unsubmitted_job_of
from harness.records.nights import read_night
from harness.records.run import RunRecord
from harness.records.store import RECORD, read_run
from harness.records.sweeps import read_sweep


@dataclass(frozen=True)
class Addition:
    """A run that was asked for. ``is_new`` False: history had it, and what it says stays as it is."""

    record: HistoryRecord
    path: Path
    is_new: bool


def add_runs(references: Sequence[str], results: Path) -> tuple[Addition, ...]:
    """Keep every run named: folders, record files or ids, and of a sweep or a night all of its committed runs; each once.

    All are read before the first is kept. BadRequestError with every reference that means no run; RunFailedError where nothing
    can be written.
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
    if stored.kind == "run":
        return (read_run(stored.path),)
    runs = tuple(_of_sweep(stored.path) if stored.kind == "sweep" else _of_night(stored.path))
    if not runs:
        raise BadRequestError(f"{stored.path}: no run of it was committed ({RECORD})")
    return runs


def _of_sweep(folder: Path) -> Iterator[RunRecord]:
    for cell in read_sweep(folder).cells:
        yield from cell.runs


def _of_night(folder: Path) -> Iterator[RunRecord]:
    for case in read_night(folder).cases:
        yield from (run.record for run in case.runs if run.record is not None)


def _added(run: RunRecord, results: Path) -> Addition:
    record = history_record(run, derive(run))
    path = history_path(results, record)
    if path.is_file():
        kept = read_record(path)
        if (kept.fingerprint, kept.started_at) == (record.fingerprint, record.started_at):
            return Addition(kept, path, is_new=False)
    return Addition(record, write_history(results, record), is_new=True)
