"""Submits a job: writes its files, submits it, and records the answer of the cluster."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import harness
from harness.batch.launches import make_folder
from harness.cluster.collecting import drop_unstarted
from harness.cluster.commands import Slurm
from harness.cluster.controller import Answer, Controller
from harness.cluster.following import wait_and_judge
from harness.cluster.kubernetes import Kubernetes
from harness.cluster.showing import JobDisplay
from harness.errors import BadRequestError, ExitCode, RunFailedError
from harness.experiment.experiment import ExperimentSpec
from harness.launch.cluster_job import ClusterJob
from harness.launch.environment import Host
from harness.launch.jobs import cluster_job
from harness.records.batches import BatchLaunch
from harness.records.folders import new_folder
from harness.records.gating import GateOptions
from harness.records.job import (
    JOB,
    JOBS,
    LOGS,
    SUBMITTED,
    ClusterRequest,
    JobOptions,
    JobRecord,
    JobRun,
    SubmittedRecord,
    job_text,
    read_job,
)
from harness.records.redact import own_command
from harness.records.store import write_atomically, write_once
from harness.show.terminal import narrate
from harness.units import command_text, utc_now


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A job without a folder. ``label``: names folder and job; ``subject`` None: the job's own folder."""

    what: Literal["run", "sweep", "nightly"]
    label: str
    specs: tuple[ExperimentSpec, ...]
    launch: BatchLaunch
    options: JobOptions
    results: Path
    subject: Path | None = None
    runs: tuple[JobRun, ...] = ()
    gate: GateOptions = field(default_factory=GateOptions)

    def record(self, job_dir: Path) -> JobRecord:
        """``job.json`` of a job in that folder."""
        gpus = (0 if spec.gpu_type.is_cpu else min(spec.num_gpus, spec.gpus_per_node) for spec in self.specs)
        return JobRecord(
            job_dir=str(job_dir),
            name=self.options.job_name(self.label, job_dir.name[-8:]),
            what=self.what,
            subject=str(self.subject or job_dir),
            nnodes=self.launch.nnodes,
            gpus_per_node=max(gpus),
            runs=self.runs,
            launch=self.launch,
            gate=self.gate,
            results_dir=str(self.results),
            options=self.options,
            command=own_command(),
            created_at=utc_now(),
            mbr_perf=harness.__version__,
        )

    def checked(self, host: Host) -> ClusterJob:
        """Return the job without its folder. One BadRequestError for all values that its files cannot hold."""
        record = self.record(self.results / JOBS / "JOB")
        job = cluster_job(record, host)
        job_text(record)
        return job


def hand_over(
    asked: JobRequest,
    cluster: ClusterRequest,
    host: Host,
    display: JobDisplay,
    judge: Callable[[JobRecord], ExitCode],
    again: str = "",
) -> ExitCode:
    """Submit a job in a new folder, wait and judge, unless asked not to. ``again``: what to do if it is refused."""
    controller = controller_of(cluster.options, host.shell)
    if controller.ignored:
        names = ", ".join(controller.ignored)
        narrate(f"Note: mbr-perf ignores {names} of your shell; use options of mbr-perf")
    job = prepare(asked.record(new_folder(asked.results / JOBS, asked.label, (LOGS,))), host)
    if not cluster.submit:
        display.prepared(job)
        return ExitCode.OK
    try:
        submitted = submit(job, controller)
    except BadRequestError as error:
        drop_unstarted(job.record.runs)
        if again:
            raise BadRequestError(str(error), remedy=again) from error
        raise
    narrate(f"job {submitted.job_id} submitted: {job.record.job_dir}")
    if cluster.detach:
        display.detached(job.record, submitted)
        return ExitCode.OK
    return wait_and_judge(Path(job.record.job_dir), controller, display, judge)


def require_accepted(asked: JobRequest, cluster: ClusterRequest, host: Host) -> None:
    """Raise BadRequestError for a job that its file cannot hold, or that Kubernetes refuses in a dry run."""
    job = asked.checked(host)
    if cluster.submit and not cluster.options.serves_nodes:
        controller_of(cluster.options, host.shell).require_options(job)


def controller_of(options: JobOptions, shell: Mapping[str, str]) -> Controller:
    """Return what reaches the cluster of these options."""
    return Kubernetes(shell, options.namespace) if options.launcher == "kubeflow" else Slurm(shell)


def require_gpu_named(gpu: str) -> None:
    """Raise BadRequestError if the request names no GPU type."""
    if not gpu:
        raise BadRequestError(
            "a job of a cluster: mbr-perf cannot see from here which GPUs the nodes have",
            remedy="name the GPU type with --gpu, or use --gpu cpu",
        )


def prepare(record: JobRecord, host: Host) -> ClusterJob:
    """Write ``job.json`` and the file to submit. One BadRequestError for all values that they cannot hold."""
    job = cluster_job(record, host)
    write_once(Path(record.job_dir) / JOB, job_text(record))
    # Variables of the shell may hold bytes that are not UTF-8. They stay as they are.
    write_atomically(job.record.script_path, job.render().encode("utf-8", "surrogateescape"))
    return job


def submit(job: ClusterJob, controller: Controller) -> SubmittedRecord:
    """Submit the job. BadRequestError if the cluster refuses it."""
    return _noted(job, controller.submit(job, utc_now()))


def found_again(job: ClusterJob, controller: Controller) -> SubmittedRecord | None:
    """Find and record a job that was accepted unconfirmed; None without. RunFailedError if nobody answers."""
    found = controller.find(job, utc_now())
    if isinstance(found, Answer):
        problem = f"{controller.cluster} does not report whether the job is queued: {found.err.strip()}"
        raise RunFailedError(problem, remedy=f"look for a job named {job.record.name}")
    return None if found is None else _noted(job, found)


def _noted(job: ClusterJob, submitted: SubmittedRecord) -> SubmittedRecord:
    write_atomically(Path(job.record.job_dir) / SUBMITTED, submitted)
    return submitted


def submit_prepared(job_dir: Path, host: Host) -> SubmittedRecord:
    """Submit the files of a folder unchanged. Takes up their job if it is queued already."""
    record = read_job(job_dir)
    if (job_dir / SUBMITTED).exists():
        problem = f"{job_dir}: this job was submitted before"
        raise BadRequestError(problem, remedy=command_text("jobs", "status", job_dir))
    controller = controller_of(record.options, host.shell)
    for run in record.runs:  # the cluster refused the job before, so its folders were removed
        make_folder(Path(run.run_dir))
    job = cluster_job(record, host)
    return found_again(job, controller) or submit(job, controller)
