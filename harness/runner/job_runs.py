"""The runs of a job as they lie on disk: which are committed, which are due, which will never start."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.records.job import JobRecord, JobRun
from harness.records.run import RunRecord
from harness.records.store import RECORD
from harness.records.strict_json import read_document


@dataclass(frozen=True)
class TaskRuns:
    """The runs of one task in order. ``due``: the one that is to be committed next; None when the task has no more.

    A run that ended badly is the last one of its task; ``dropped`` are those after it.
    """

    task: int
    committed: tuple[tuple[JobRun, RunRecord], ...]
    due: JobRun | None
    dropped: tuple[JobRun, ...]


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
    committed: list[tuple[JobRun, RunRecord]] = []
    for place, run in enumerate(runs):
        if not is_committed(run):
            return TaskRuns(number, tuple(committed), run, tuple(runs[place + 1 :]))
        record = read_document(Path(run.run_dir) / RECORD, RunRecord)
        committed.append((run, record))
        if record.status != "ok":
            return TaskRuns(number, tuple(committed), None, tuple(runs[place + 1 :]))
    return TaskRuns(number, tuple(committed), None, ())
