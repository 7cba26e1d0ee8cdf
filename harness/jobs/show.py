"""Shows Slurm jobs for people and as JSON: a table of all jobs, and one job with its runs and logs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.cluster.collecting import TaskRuns, task_runs
from harness.cluster.commands import Slurm
from harness.cluster.following import watched
from harness.cluster.state import Kind, TaskState, job_state
from harness.errors import BadRequestError
from harness.records.collect import read_heartbeats
from harness.records.job import JobRecord, JobRun, SubmittedRecord, read_job, read_submitted
from harness.records.run import RunRecord, Status
from harness.show.json import Document, Shown, at
from harness.show.page import GAP, Column, Facts, Page, Table


@dataclass(frozen=True)
class RunStanding:
    """One run of a job: committed, running (``where``: phase and steps of its first rank), or not started."""

    run: JobRun
    record: RunRecord | None
    where: str = ""

    @property
    def text(self) -> str:
        """Return the state in one word or sentence."""
        if self.record is None:
            return self.where or "not started"
        return self.record.status + (f": {self.record.failure}" if self.record.failure else "")


@dataclass(frozen=True)
class JobStanding:
    """A job: ``submitted`` is None if it is only prepared; ``states`` is empty if mbr-perf did not ask Slurm."""

    job: JobRecord
    submitted: SubmittedRecord | None
    states: tuple[TaskState, ...]
    runs: tuple[RunStanding, ...]

    @property
    def filled_by(self) -> str:
        """Return the jobs whose runs fill this job's run folders, if this job left none."""
        return ", ".join(dict.fromkeys(task.filled_by for task in task_runs(self.job) if task.filled_by))

    @property
    def is_settled(self) -> bool:
        """Return whether every expected run is committed, so that Slurm's state does not matter."""
        return bool(self.job.runs) and all(task.due is None for task in task_runs(self.job))

    @property
    def text(self) -> str:
        """One line: not submitted, how its runs ended, or Slurm's state."""
        if self.filled_by:
            states = dict.fromkeys(state.text for state in self.states)
            return f"{'; '.join(states)}; it left no run: its folder contains the run of job {self.filled_by}"
        if self.is_settled:
            return ", ".join(dict.fromkeys(run.record.status for run in self.runs if run.record))
        if self.submitted is None:
            return "prepared, not submitted"
        waiting = (
            "; collect it with mbr-perf jobs wait" if self.states and all(s.has_ended for s in self.states) else ""
        )
        return "; ".join(dict.fromkeys(state.text for state in self.states)) + waiting


def standing(job_dir: Path, slurm: Slurm) -> JobStanding:
    """Return the state of a job. Asks Slurm unless every run is committed."""
    job, submitted = read_job(job_dir), read_submitted(job_dir)
    runs = tuple(
        stand
        for task in task_runs(job)
        for stand in (
            *(RunStanding(run, record) for run, record in task.committed),
            *((RunStanding(task.due, None, _where(task.due)),) if task.due else ()),
            *(RunStanding(run, None) for run in task.dropped if task.due),
            *(RunStanding(run, None, "no results") for run in _left_nothing(job, task)),
        )
    )
    found = JobStanding(job, submitted, (), runs)
    if (found.is_settled and not found.filled_by) or submitted is None:
        return found
    return JobStanding(job, submitted, job_state(slurm, submitted), runs)


def _left_nothing(job: JobRecord, task: TaskRuns) -> tuple[JobRun, ...]:
    """Return the runs whose folders another job filled."""
    of_task = [run for run in job.runs if run.task == task.task]
    return tuple(of_task[len(task.committed) :]) if task.filled_by else ()


def cancel(job_dir: Path, slurm: Slurm) -> SubmittedRecord:
    """Ask Slurm to end the job. BadRequestError: it has already ended."""
    watch = watched(job_dir)
    if standing(job_dir, slurm).is_settled:
        raise BadRequestError(
            f"{job_dir}: this job has already ended", remedy=f"mbr-perf jobs wait {job_dir} judges it"
        )
    slurm.cancel(watch.submitted)
    return watch.submitted


def _where(run: JobRun) -> str:
    beats, _ = read_heartbeats(Path(run.run_dir) / "ranks" / "rank_000.progress.jsonl")
    if not beats:
        return ""
    steps = [beat.step for beat in beats if beat.step is not None and beat.seconds is not None]
    done = f" {steps[-1] + 1}/{run.spec.measure.max_steps}" if steps else ""
    return f"{beats[-1].phase}{done}"


def job_page(found: JobStanding) -> Page:
    """Return the job, its state, and a row per run."""
    job, submitted = found.job, found.submitted
    facts = [
        ("Job", job.job_dir),
        *([("Slurm", f"{submitted.job_id}, submitted {submitted.submitted_at}")] if submitted else []),
        ("For", job.what if job.what == "run" else f"{job.what} {job.subject}"),
        ("State", found.text),
    ]
    columns = (Column("Run", whole=True), Column("State", long=True))
    runs = Table(columns, tuple((standing.run.run_id, standing.text) for standing in found.runs))
    return Page((Facts(tuple(facts), 7), *((GAP, runs) if found.runs else ())))


class SlurmRow(Shown):
    """Slurm's state of an array task, or of the job."""

    state: str = at("slurm")
    kind: Kind
    reason: str
    exit_code: str
    restarts: int
    nodes: str
    tasks: tuple[int, ...]
    source: str


class RunRow(Shown):
    """One run of a job. ``where``: the phase and steps of its first rank while it runs."""

    run_id: str = at("run", "run_id")
    run_dir: str = at("run", "run_dir")
    task: int = at("run", "task")
    status: Status | None = at("record", "status")
    failure: str | None = at("record", "failure")
    where: str


class JobRow(Shown):
    """A job. ``job_id`` is null if the job is not submitted; ``slurm`` is empty if mbr-perf did not ask Slurm."""

    job_dir: str = at("job", "job_dir")
    what: Literal["run", "sweep", "nightly"] = at("job", "what")
    subject: str = at("job", "subject")
    name: str = at("job", "name")
    created_at: str = at("job", "created_at")
    job_id: str | None = at("submitted", "job_id")
    submitted_at: str | None = at("submitted", "submitted_at")
    is_settled: bool
    state: str = at("text")
    slurm: tuple[SlurmRow, ...] = at("states")
    runs: tuple[RunRow, ...]


class JobDocument(JobRow, Document):
    """``mbr-perf jobs status --json``."""


class CancelledDocument(Document):
    """``mbr-perf jobs cancel --json``."""

    job_dir: str
    job_id: str
    is_cancelled: Literal[True] = True
