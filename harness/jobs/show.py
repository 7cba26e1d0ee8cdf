"""Jobs for people: a table of all of them, and one with its runs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.batch.slurm.collecting import TaskRuns, task_runs, without_steering
from harness.batch.slurm.following import watched
from harness.errors import BadRequestError
from harness.launch.slurm.commands import Slurm
from harness.launch.slurm.state import TaskState, job_state
from harness.records.collect import read_heartbeats
from harness.records.job import LOGS, JobRecord, JobRun, SubmittedRecord, job_dirs, read_job, read_submitted
from harness.records.run import RunRecord
from harness.showing.page import GAP, Column, Facts, Page, Table, tabled


@dataclass(frozen=True)
class RunStanding:
    """One run of a job: committed, at work (``where``: phase and steps of its first rank), or not yet begun."""

    run: JobRun
    record: RunRecord | None
    where: str = ""

    @property
    def text(self) -> str:
        """One word, or one sentence."""
        if self.record is None:
            return self.where or "not begun"
        return self.record.status + (f": {self.record.failure}" if self.record.failure else "")


@dataclass(frozen=True)
class JobStanding:
    """A job: ``submitted`` None where it only was prepared; ``states`` empty where Slurm was not asked."""

    job: JobRecord
    submitted: SubmittedRecord | None
    states: tuple[TaskState, ...]
    runs: tuple[RunStanding, ...]

    @property
    def filled_by(self) -> str:
        """The jobs whose runs lie where those of this one were to lie, if there are any and it left none."""
        return ", ".join(dict.fromkeys(task.filled_by for task in task_runs(self.job) if task.filled_by))

    @property
    def is_settled(self) -> bool:
        """Whether every run that is to come is committed, so that Slurm has no say in it."""
        return bool(self.job.runs) and all(task.due is None for task in task_runs(self.job))

    @property
    def text(self) -> str:
        """One line: not submitted, what became of its runs, or what Slurm says."""
        if self.filled_by:
            told = dict.fromkeys(state.text for state in self.states)
            return f"{'; '.join(told)}; left no run, its folder holds that of job {self.filled_by}"
        if self.is_settled:
            return ", ".join(dict.fromkeys(run.record.status for run in self.runs if run.record))
        if self.submitted is None:
            return "prepared, not submitted"
        waiting = (
            "; collect it with mbr-perf jobs wait" if self.states and all(s.has_ended for s in self.states) else ""
        )
        return "; ".join(dict.fromkeys(state.text for state in self.states)) + waiting


def standing(job_dir: Path, slurm: Slurm) -> JobStanding:
    """One job. Slurm is asked unless every run is committed."""
    job, submitted = read_job(job_dir), read_submitted(job_dir)
    runs = tuple(
        stand
        for task in task_runs(job)
        for stand in (
            *(RunStanding(run, record) for run, record in task.committed),
            *((RunStanding(task.due, None, _where(task.due)),) if task.due else ()),
            *(RunStanding(run, None) for run in task.dropped if task.due),
            *(RunStanding(run, None, "left nothing") for run in _left_nothing(job, task)),
        )
    )
    found = JobStanding(job, submitted, (), runs)
    if (found.is_settled and not found.filled_by) or submitted is None:
        return found
    return JobStanding(job, submitted, job_state(slurm, submitted), runs)


def _left_nothing(job: JobRecord, task: TaskRuns) -> tuple[JobRun, ...]:
    """Runs whose folders another job filled."""
    of_task = [run for run in job.runs if run.task == task.task]
    return tuple(of_task[len(task.committed) :]) if task.filled_by else ()


def standings(results: Path, slurm: Slurm) -> tuple[JobStanding, ...]:
    """Every job, oldest first."""
    return tuple(standing(job_dir, slurm) for job_dir in job_dirs(results))


def cancel(job_dir: Path, slurm: Slurm) -> SubmittedRecord:
    """Ask Slurm to end the job. BadRequestError where there is nothing to end."""
    one = watched(job_dir)
    if standing(job_dir, slurm).is_settled:
        raise BadRequestError(f"{job_dir}: has ended", remedy=f"mbr-perf jobs wait {job_dir} judges it")
    slurm.cancel(one.submitted)
    return one.submitted


def _where(run: JobRun) -> str:
    beats, _ = read_heartbeats(Path(run.run_dir) / "ranks" / "rank_000.progress.jsonl")
    if not beats:
        return ""
    steps = [beat.step for beat in beats if beat.step is not None and beat.seconds is not None]
    done = f" {steps[-1] + 1}/{run.spec.measure.max_steps}" if steps else ""
    return f"{beats[-1].phase}{done}"


_LOOK_S, _ASK_EVERY = 0.5, 10
_READ_BYTES = 1 << 20

Write = Callable[[str], object]


def log_files(job: JobRecord, rank: int | None) -> tuple[Path, ...]:
    """The job's own logs, or those of one rank in every run that has one, oldest run first. They may not be there yet."""
    if rank is None:
        return tuple(sorted((Path(job.job_dir) / LOGS).glob("slurm-*.out")))
    return tuple(log for run in job.runs if (log := Path(run.run_dir) / "logs" / f"rank_{rank:03d}.log").is_file())


def require_rank(job: JobRecord, rank: int | None) -> None:
    """BadRequestError for a rank that no run of the job has."""
    most = max((run.spec.num_gpus for run in job.runs), default=None)
    if rank is not None and most is not None and rank >= most:
        ranks = "rank 0 alone" if most == 1 else f"ranks 0 to {most - 1}"
        raise BadRequestError(f"{job.job_dir}: there is no rank {rank}", remedy=f"it has {ranks}")


def show_logs(job: JobRecord, rank: int | None, write: Write, tell: Write) -> None:
    """Write every log once. ``tell`` names each file. BadRequestError where there is none."""
    require_rank(job, rank)
    files = log_files(job, rank)
    if not files:
        whose = "of the job itself" if rank is None else f"of rank {rank}"
        raise BadRequestError(f"{job.job_dir}: no log {whose} yet", remedy=f"mbr-perf jobs status {job.job_dir}")
    reader = _Reader(write, tell)
    for path in files:
        while reader.read(path):
            pass


def follow_logs(job_dir: Path, job: JobRecord, rank: int | None, slurm: Slurm, write: Write, tell: Write) -> None:
    """Write what is there and what comes, until the job has ended."""
    require_rank(job, rank)
    reader, looks, ended = _Reader(write, tell), 0, False
    while True:
        for path in log_files(job, rank):
            while reader.read(path):
                pass
        if ended:
            return
        if looks % _ASK_EVERY == 0:
            now = standing(job_dir, slurm)
            ended = now.is_settled or (bool(now.states) and all(state.has_ended for state in now.states))
        looks += 1
        if not ended:
            time.sleep(_LOOK_S)


class _Reader:
    """Reads each file on from where it stopped; names it whenever another one was read before."""

    def __init__(self, write: Write, tell: Write) -> None:
        self._write, self._tell = write, tell
        self._offsets: dict[Path, int] = {}
        self._last: Path | None = None

    def read(self, path: Path) -> bool:
        """Write a piece of what is new; True when there was any."""
        with path.open("rb") as stream:
            stream.seek(self._offsets.get(path, 0))
            chunk = stream.read(_READ_BYTES)
        if not chunk:
            return False
        if path != self._last:
            self._tell(f"==> {path} <==")
            self._last = path
        self._offsets[path] = self._offsets.get(path, 0) + len(chunk)
        self._write(without_steering(chunk.decode(errors="replace")))
        return True


def jobs_page(found: Sequence[JobStanding], results: Path) -> Page:
    """A row per job."""
    if not found:
        return Page((f"no jobs in {results}",))
    columns = [
        (Column("Job", whole=True), lambda one: Path(one.job.job_dir).name),
        (Column("Slurm", drop=1, whole=True), lambda one: one.submitted.job_id if one.submitted else "-"),
        (Column("For", drop=2), lambda one: one.job.what),
        (Column("Runs", right=True, drop=2), lambda one: str(len(one.job.runs)) if one.job.runs else "-"),
        (Column("State", long=True), lambda one: one.text),
    ]
    return Page((tabled(found, columns),))


def job_page(found: JobStanding) -> Page:
    """The job and how it stands, and a row per run."""
    job, submitted = found.job, found.submitted
    facts = [
        ("Job", job.job_dir),
        *([("Slurm", f"{submitted.job_id}, submitted {submitted.submitted_at}")] if submitted else []),
        ("For", job.what if job.what == "run" else f"{job.what} {job.subject}"),
        ("State", found.text),
    ]
    columns = (Column("Run", whole=True), Column("State", long=True))
    runs = Table(columns, tuple((one.run.run_id, one.text) for one in found.runs))
    return Page((Facts(tuple(facts), 7), *((GAP, runs) if found.runs else ())))
