"""Slurm jobs: what is submitted, and where jobs are kept."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import Field

from harness.errors import BadRequestError
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.gpu import Frozen
from harness.records.batches import BatchLaunch
from harness.records.folders import folder_named, folders, new_folder
from harness.records.goldens import GateOptions
from harness.records.rank import SCHEMA_VERSION
from harness.records.run import PredictionRecord
from harness.records.store import results_dir, write_once
from harness.records.strict_json import read_document

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


@dataclass(frozen=True, kw_only=True)
class SlurmRequest:
    """What `--launcher slurm` asks for beyond a run. ``submit`` False: prepare the job and stop.

    ``detach``: submit it and do not wait. ``array``: a task per cell.
    """

    options: SlurmOptions
    submit: bool = True
    detach: bool = False
    array: bool = False


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
    gate: GateOptions = GateOptions()
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


JOBS = "jobs"


def new_job_dir(results: Path, name: str, *, now: datetime | None = None) -> Path:
    """Make ``jobs/<UTC time>-<name>-<8 hex>`` with its ``logs``. BadRequestError where it cannot be made."""
    return new_folder(results / JOBS, name, (LOGS,), now=now or datetime.now(UTC))


def write_job(record: JobRecord) -> Path:
    """``job.json``, whole and once. BadRequestError for text that JSON cannot hold; FileExistsError where there is one."""
    path = Path(record.job_dir) / JOB
    write_once(path, job_text(record))
    return path


def job_text(record: JobRecord) -> str:
    """The record as ``job.json`` holds it. BadRequestError where a value is no UTF-8 text, so that it would not arrive."""
    try:
        text = record.model_dump_json(indent=1) + "\n"
        text.encode("utf-8")
    except ValueError as error:  # pydantic's error for lone surrogates, and Python's, are both one
        raise BadRequestError(
            "a value of the request is not UTF-8 text, and cannot be handed to a job", remedy="spell it in UTF-8"
        ) from error
    return text


def write_submitted(job_dir: Path, submitted: SubmittedRecord) -> Path:
    """``submitted.json``, whole and once: FileExistsError where the job was submitted before."""
    path = job_dir / SUBMITTED
    write_once(path, submitted.model_dump_json(indent=1) + "\n")
    return path


def read_job(job_dir: Path) -> JobRecord:
    """What the job is to run. BadRequestError for a folder without ``job.json``, or one that cannot be read."""
    if not (job_dir / JOB).is_file():
        raise BadRequestError(f"{job_dir}: no {JOB}: no job's folder", remedy="mbr-perf jobs list")
    return read_document(job_dir / JOB, JobRecord)


def read_submitted(job_dir: Path) -> SubmittedRecord | None:
    """What sbatch answered; None where the job was not submitted."""
    path = job_dir / SUBMITTED
    return read_document(path, SubmittedRecord) if path.is_file() else None


def job_dirs(results: Path) -> tuple[Path, ...]:
    """Every job's folder, oldest first."""
    return tuple(folder for folder in folders(results / JOBS) if (folder / JOB).is_file())


def unsubmitted_job_of(run_dir: Path) -> Path | None:
    """The folder of the job that is to fill a run's folder in ``results/runs`` and was not submitted; None without one."""
    for job_dir in job_dirs(run_dir.absolute().parents[1]):
        with suppress(BadRequestError):  # what cannot be read is another command's to tell
            runs = read_job(job_dir).runs if read_submitted(job_dir) is None else ()
            if any(Path(run.run_dir).resolve() == run_dir.resolve() for run in runs):
                return job_dir
    return None


def job_dir_of(reference: str, results: Path | None = None) -> Path:
    """The folder that ``reference`` means: itself, the job that has this number in Slurm, or the start of an id.

    BadRequestError for a reference that names none or several.
    """
    if Path(reference).is_dir():
        return Path(reference)
    root = results_dir(results)
    numbered = [folder for folder in job_dirs(root) if _number(folder) == reference]
    return numbered[-1] if numbered else folder_named(reference, root / JOBS, "job")


def _number(folder: Path) -> str | None:
    submitted = read_submitted(folder)
    return submitted.job_id if submitted else None
