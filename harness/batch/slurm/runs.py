"""The runs of a job as they lie on disk: which are committed, which are due, which will never start."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness.batch.folder import asides
from harness.records.job import JobRecord, JobRun, SubmittedRecord, read_submitted
from harness.records.run import RunRecord
from harness.records.store import RECORD
from harness.records.strict_json import read_document


@dataclass(frozen=True)
class TaskRuns:
    """The runs of one task in order. ``due``: the one that is to be committed next; None when the task has no more.

    A run that ended badly is the last one of its task; ``dropped`` are those after it. ``filled_by``: another job, by its
    number in Slurm, whose run lies where one of this task was to lie, of which nothing is left; then nothing is due.
    """

    task: int
    committed: tuple[tuple[JobRun, RunRecord], ...]
    due: JobRun | None
    dropped: tuple[JobRun, ...]
    filled_by: str = ""


def task_runs(job: JobRecord) -> tuple[TaskRuns, ...]:
    """Every task of the job. BadRequestError for a record that cannot be read."""
    return tuple(_task(job, task) for task in range(job.num_tasks))


def committed_runs(job: JobRecord) -> tuple[tuple[JobRun, RunRecord], ...]:
    """All committed runs, task by task."""
    return tuple(pair for task in task_runs(job) for pair in task.committed)


def is_committed(run: JobRun) -> bool:
    """Whether the run's record is there: the truth about it, whatever Slurm says of the job."""
    return (Path(run.run_dir) / RECORD).is_file()


def drop_unstarted(runs: Iterator[JobRun] | tuple[JobRun, ...]) -> None:
    """Remove the folders of runs in which nothing was ever written; a folder that holds something stays."""
    for run in runs:
        folder = Path(run.run_dir)
        with suppress(OSError):
            for inner in ("ranks", "logs"):
                (folder / inner).rmdir()
            folder.rmdir()


def _task(job: JobRecord, number: int) -> TaskRuns:
    runs = [run for run in job.runs if run.task == number]
    submitted = read_submitted(Path(job.job_dir))
    committed: list[tuple[JobRun, RunRecord]] = []
    for place, run in enumerate(runs):
        if not is_committed(run):
            aside = _kept_aside(run, submitted)
            if aside is None:
                return TaskRuns(number, tuple(committed), run, tuple(runs[place + 1 :]))
            return TaskRuns(number, (*committed, (run, aside)), None, ())  # the other folders are another job's by now
        record = read_document(Path(run.run_dir) / RECORD, RunRecord)
        if not _is_of(record, submitted):
            aside = _kept_aside(run, submitted)
            own = () if aside is None else ((run, aside),)
            other = "" if own else record.provenance.job_id or ""
            return TaskRuns(number, (*committed, *own), None, (), other)
        committed.append((run, record))
        if record.status != "ok":
            return TaskRuns(number, tuple(committed), None, tuple(runs[place + 1 :]))
    return TaskRuns(number, tuple(committed), None, ())


def _is_of(record: RunRecord, submitted: SubmittedRecord | None) -> bool:
    """Whether the job wrote it, as far as the record says whose it is."""
    job_id = record.provenance.job_id
    return submitted is None or job_id is None or job_id == submitted.job_id


def _kept_aside(run: JobRun, submitted: SubmittedRecord | None) -> RunRecord | None:
    """The record of this job where its folder was moved aside for another attempt.

    Slurm counts from the start again some day: a record from before the submission is not of this job.
    """
    run_dir = Path(run.run_dir)
    for folder in asides(run_dir):
        path = folder / RECORD
        if submitted is not None and path.is_file():
            record = read_document(path, RunRecord)
            where = record.provenance
            finished, asked = (datetime.fromisoformat(at) for at in (where.finished_at, submitted.submitted_at))
            if where.job_id == submitted.job_id and finished > asked:
                return record
    return None
