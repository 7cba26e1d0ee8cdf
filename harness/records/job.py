"""Jobs of Slurm and Kubernetes: their records and folders."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue

from harness.errors import BadRequestError
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.frozen import Frozen
from harness.records.batches import BatchLaunch, Build
from harness.records.folders import results_dir
from harness.records.gating import GateOptions
from harness.records.prediction import PredictionRecord
from harness.records.rank import Recorded
from harness.records.references import folder_named, folders
from harness.records.strict_json import read_document

JOB, SUBMITTED, LOGS, JOBS = "job.json", "submitted.json", "logs", "jobs"
ATTEMPTS, MEETING = "attempts", "meeting.json"


def time_limit_note(job_dir: Path) -> Path:
    """Return the file that a job makes as its time limit comes near, before the ranks end."""
    return job_dir / "time_limit"


class ClusterOptions(Frozen):
    """What a job asks any cluster for. ``serves_nodes``: it warns nodes, takes exit codes, and counts restarts."""

    cluster: ClassVar[str]
    script: ClassVar[str]
    serves_nodes: ClassVar[bool]

    time_limit_minutes: int = Field(ge=1)
    container_image: str | None = None
    python: str | None = None
    pending_timeout_minutes: int | None = Field(default=None, ge=1)
    exclude: str | None = None


class SlurmOptions(ClusterOptions):
    """What a job asks Slurm for. ``gpus`` none: whole nodes. ``segment``: nodes of an NVLink domain."""

    cluster, script, serves_nodes = "Slurm", "job.sbatch", True

    launcher: Literal["slurm"] = "slurm"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    gpus: Literal["gpus-per-node", "gres", "none"] = "gpus-per-node"
    exclusive: bool = True
    segment: int | None = Field(default=None, ge=1)
    container_mounts: tuple[str, ...] = ()

    def job_name(self, label: str, _: str) -> str:
        """Return the job's name. Characters that a batch file cannot hold become ``-``."""
        safe = (each if each.isascii() and (each.isalnum() or each in "._-") else "-" for each in label)
        return f"mbr-perf.{''.join(safe)}"[:64]


class KubeflowOptions(ClusterOptions):
    """What a job asks Kubeflow Trainer for. ``base``: a TrainJob to complete. ``workdir_pvc``: None, if mounted."""

    cluster, script, serves_nodes = "Kubernetes", "trainjob.json", False

    launcher: Literal["kubeflow"] = "kubeflow"
    namespace: str = "default"
    trainer: Literal["2.1", "2.2"] = "2.2"
    workdir_pvc: str | None = None
    workdir_pvc_path: str = "/nemo_run"
    base: dict[str, JsonValue] = Field(default_factory=dict)

    def job_name(self, label: str, unique: str) -> str:
        """Return the job's name, which is its id. The name of a pod continues it and has at most 63 characters."""
        return f"mbr-perf-{re.sub(r'[^a-z0-9]+', '-', label.lower())[:24].strip('-')}-{unique.lower()}"


JobOptions = Annotated[SlurmOptions | KubeflowOptions, Field(discriminator="launcher")]
CLUSTERS: Mapping[str, type[SlurmOptions | KubeflowOptions]] = {"slurm": SlurmOptions, "kubeflow": KubeflowOptions}
"""By launcher."""


@dataclass(frozen=True, kw_only=True)
class ClusterRequest:
    """``submit`` False: prepare the job and stop. ``detach``: submit the job and do not wait."""

    options: JobOptions
    submit: bool = True
    detach: bool = False


class JobRun(Frozen):
    """One run of a job. ``run_dir``: absolute. ``build``: the environment of its ranks, if it is not the job's."""

    run_dir: str
    run_id: str
    spec: ExperimentSpec
    sources: dict[str, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    force: tuple[str, ...] = ()
    prediction: PredictionRecord | None = None
    no_prediction: str = ""
    build: Build | None = None


class JobRecord(Recorded):
    """``job.json``. ``subject``: the folder that the runs belong to. A job of a sweep has no ``runs``: it resumes."""

    job_dir: str
    name: str
    what: Literal["run", "sweep", "nightly"]
    subject: str
    nnodes: int
    gpus_per_node: int = 0
    runs: tuple[JobRun, ...] = ()
    launch: BatchLaunch = BatchLaunch()
    gate: GateOptions = GateOptions()
    results_dir: str | None = None
    options: JobOptions
    command: tuple[str, ...]
    created_at: str
    mbr_perf: str

    @property
    def script_path(self) -> Path:
        return Path(self.job_dir) / self.options.script


def past_time_limit(job: JobRecord) -> str:
    """Return the failure of a run that the time limit ended; empty if it did not."""
    limit = f"the time limit of {job.options.time_limit_minutes} min was about to expire"
    return f"{job.options.cluster}: TIMEOUT: {limit}" if time_limit_note(Path(job.job_dir)).exists() else ""


class SubmittedRecord(Recorded):
    """``submitted.json``: the cluster's answer. ``cluster``: one of several that Slurm serves, or kubectl's context."""

    job_id: str
    cluster: str | None = None
    submitted_at: str


class JobAttempt(Recorded):
    """``attempts/<job id>.<restart>.json``. ``refused``: why it runs nothing. ``master_port``: of a sweep's nodes."""

    job_id: str
    restart_count: int
    nodes: str
    hostname: str
    started_at: str
    refused: tuple[str, ...] = ()
    master_port: int


class Meeting(Recorded):
    """``meeting.json`` of a run on several nodes: the first node has begun, and this is where its ranks meet."""

    master_addr: str
    master_port: int


def attempt_path(job_dir: Path, job_id: str, restart_count: int) -> Path:
    """Number attempts by Slurm's restarts, so that a requeued job overwrites none."""
    return job_dir / ATTEMPTS / f"{job_id}.{restart_count}.json"


def attempts_of(job_dir: Path) -> list[JobAttempt]:
    """Read every attempt at a job."""
    return [read_document(path, JobAttempt) for path in attempt_files(job_dir)]


def attempt_files(job_dir: Path) -> list[Path]:
    """Return the file of each attempt at a job: that one began is known even where its file is damaged."""
    return sorted((job_dir / ATTEMPTS).glob("*.json"))


def job_text(record: JobRecord) -> str:
    """Return the text of ``job.json``. BadRequestError if a value is not valid UTF-8."""
    try:
        text = record.model_dump_json(indent=1) + "\n"
        text.encode("utf-8")
    except ValueError as error:  # the base of pydantic's and of Python's error for lone surrogates
        raise BadRequestError(
            "a value of the request is not UTF-8 text, so a job cannot receive it", remedy="use UTF-8"
        ) from error
    return text


def read_job(job_dir: Path) -> JobRecord:
    """Read ``job.json``. BadRequestError if the folder has none or it cannot be read."""
    if not (job_dir / JOB).is_file():
        raise BadRequestError(
            f"{job_dir}: no {JOB}: not the folder of a job", remedy="the folders in results/jobs are jobs"
        )
    return read_document(job_dir / JOB, JobRecord)


def read_submitted(job_dir: Path) -> SubmittedRecord | None:
    """Read the answer of the cluster; None if the job was not submitted."""
    path = job_dir / SUBMITTED
    return read_document(path, SubmittedRecord) if path.is_file() else None


def job_dirs(results: Path) -> tuple[Path, ...]:
    """List the folders of all jobs, oldest first."""
    return tuple(folder for folder in folders(results / JOBS) if (folder / JOB).is_file())


def job_dir_of(reference: str, results: Path | None = None) -> Path:
    """Find the folder of a job by path, id, or the cluster's number or name. BadRequestError: none or several match."""
    if Path(reference).is_dir():
        return Path(reference)
    root = results_dir(results)
    submitted = ((folder, read_submitted(folder)) for folder in job_dirs(root))
    numbered = [folder for folder, answer in submitted if answer and answer.job_id == reference]
    return numbered[-1] if numbered else folder_named(reference, "job", root / JOBS)
