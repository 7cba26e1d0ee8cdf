"""A Slurm job of ours: ``job.json``, what it is to run, written before it is submitted; ``submitted.json`` after.

A job runs one or several runs one after the other, every node starting its own part of each; each run commits its own
``record.json``. With an array each task takes the runs of its index. Its nodes write down for one another, and for whoever
looks later, which attempts there were and where ranks meet.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from harness.records.batch import BatchGate, BatchLaunch
from harness.records.prediction import PredictionRecord
from harness.records.rank import SCHEMA_VERSION
from harness.spec.experiment import ExperimentSpec
from harness.spec.frozen import Frozen

JOB, SCRIPT, SUBMITTED, LOGS = "job.json", "job.sbatch", "submitted.json", "logs"
ATTEMPTS, MEETING = "attempts", "meeting.json"


def time_limit_note(job_dir: Path, task: int = 0) -> Path:
    """A file that the job's script makes when Slurm warns it of the time limit, before it ends the ranks."""
    return job_dir / f"time_limit_{task}"


class SlurmOptions(Frozen):
    """What Slurm is asked for beyond nodes. ``time_limit_minutes`` is mandatory: a job without one may hold nodes for ever.

    ``gpus``: how GPUs are asked for; ``none`` where the cluster gives whole nodes and knows no GPUs. ``segment``: nodes
    per NVLink domain. ``python``: what runs the harness on the nodes, in the container where there is one.
    """

    time_limit_minutes: int = Field(ge=1)
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    gpus: Literal["gpus-per-node", "gres", "none"] = "gpus-per-node"
    exclusive: bool = True
    segment: int | None = Field(default=None, ge=1)
    container_image: str | None = None
    container_mounts: tuple[str, ...] = ()
    python: str | None = None
    pending_timeout_minutes: int | None = Field(default=None, ge=1)


class JobRun(Frozen):
    """One run of a job: ``run_dir`` is absolute and holds no run yet; ``task`` is its index in the array, else 0.

    ``prediction``, or why there is none: of a run that was predicted as it was planned; else the node predicts.
    """

    run_dir: str
    run_id: str
    spec: ExperimentSpec
    sources: dict[str, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    force: tuple[str, ...] = ()
    task: int = 0
    prediction: PredictionRecord | None = None
    no_prediction: str = ""


class JobRecord(Frozen):
    """``job.json``. ``what``: run, sweep or nightly case, with ``subject``, the folder that the runs belong to.

    ``sweep_dir``: a whole sweep that the job resumes on its nodes; then there are no ``runs``. ``gpus_per_node``: asked of
    Slurm, 0 for a run on the CPU. ``gate``: how whoever collects the runs judges them; ``results_dir`` is where they lie.
    """

    schema_version: int = SCHEMA_VERSION
    job_dir: str
    name: str
    what: Literal["run", "sweep", "nightly"]
    subject: str
    nnodes: int
    gpus_per_node: int = 0
    num_tasks: int = 1
    runs: tuple[JobRun, ...] = ()
    sweep_dir: str | None = None
    launch: BatchLaunch = BatchLaunch()
    gate: BatchGate = BatchGate()
    results_dir: str | None = None
    slurm: SlurmOptions
    command: tuple[str, ...]
    created_at: str
    mbr_perf: str


class SubmittedRecord(Frozen):
    """``submitted.json``: what sbatch answered. ``cluster`` where several are served."""

    schema_version: int = SCHEMA_VERSION
    job_id: str
    cluster: str | None = None
    submitted_at: str
    sbatch: tuple[str, ...]


class JobAttempt(Frozen):
    """``attempts/<job id>.<restart>.json``: written by the first node of a job, or of a task of an array, as it starts.

    ``refused``: why this attempt runs nothing; empty where it runs. ``master_port``: where the nodes of a sweep meet.
    """

    schema_version: int = SCHEMA_VERSION
    job_id: str
    task: int
    restart_count: int
    nodes: str
    hostname: str
    started_at: str
    refused: tuple[str, ...] = ()
    master_port: int


class Meeting(Frozen):
    """``meeting.json`` of a run over several nodes: the first node has begun it, and its ranks meet there."""

    schema_version: int = SCHEMA_VERSION
    master_addr: str
    master_port: int


def attempt_path(job_dir: Path, job_id: str, restart_count: int) -> Path:
    """Where that attempt is written down."""
    return job_dir / ATTEMPTS / f"{job_id}.{restart_count}.json"
