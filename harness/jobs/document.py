"""JSON of Slurm jobs: their states and logs."""

from pathlib import Path
from typing import Literal

from harness.launch.slurm.state import Kind
from harness.records.run import Status
from harness.showing.json import Document, Shown, at


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


class JobsDocument(Document):
    """``mbr-perf jobs list --json``."""

    results_dir: Path
    jobs: tuple[JobRow, ...]


class JobDocument(JobRow, Document):
    """``mbr-perf jobs status --json``."""


class CancelledDocument(Document):
    """``mbr-perf jobs cancel --json``."""

    job_dir: str
    job_id: str
    is_cancelled: Literal[True] = True


class LogFile(Shown):
    """A log and its current size."""

    path: Path
    num_bytes: int


class LogsDocument(Document):
    """``mbr-perf jobs logs --json``. ``rank``: null for the logs of the job itself."""

    job_dir: str
    rank: int | None
    logs: tuple[LogFile, ...]
