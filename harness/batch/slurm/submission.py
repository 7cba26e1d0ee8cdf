"""A job from value to queue: its files written first, then sbatch, then what sbatch answered."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import harness
from harness.batch.launches import make_folder
from harness.batch.plan import now
from harness.batch.slurm.following import wait_and_judge
from harness.batch.slurm.showing import JobDisplay
from harness.errors import BadRequestError, ExitCode, RunFailedError
from harness.experiment.experiment import ExperimentSpec
from harness.launch.environment import Host
from harness.launch.slurm.commands import Said, Slurm
from harness.launch.slurm.job import SlurmJob, slurm_job
from harness.records.batches import BatchLaunch
from harness.records.goldens import GateOptions
from harness.records.job import (
    JOBS,
    SUBMITTED,
    JobRecord,
    JobRun,
    SlurmOptions,
    SlurmRequest,
    SubmittedRecord,
    job_text,
    new_job_dir,
    read_job,
    write_job,
    write_submitted,
)
from harness.records.redact import redact
from harness.records.store import write_bytes_atomically


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A job without a folder. ``label``: what folder and job are called by; ``subject`` None: the job's own folder.

    ``specs``: what its runs need of the nodes. ``resumes``: the folder of a whole sweep, in place of ``runs``. ``results``:
    where jobs are kept, absolute, because nodes read it.
    """

    what: Literal["run", "sweep", "nightly"]
    label: str
    specs: tuple[ExperimentSpec, ...]
    launch: BatchLaunch
    options: SlurmOptions
    results: Path
    subject: Path | None = None
    runs: tuple[JobRun, ...] = ()
    num_tasks: int = 1
    resumes: Path | None = None
    gate: GateOptions = field(default_factory=GateOptions)

    def record(self, job_dir: Path) -> JobRecord:
        """``job.json`` of a job in that folder."""
        gpus = (0 if spec.gpu_type.is_cpu else min(spec.num_gpus, spec.gpus_per_node) for spec in self.specs)
        return JobRecord(
            job_dir=str(job_dir),
            name=_job_name(self.label),
            what=self.what,
            subject=str(self.subject or job_dir),
            nnodes=self.launch.nnodes,
            gpus_per_node=max(gpus),
            num_tasks=self.num_tasks,
            runs=self.runs,
            sweep_dir=str(self.resumes) if self.resumes else None,
            launch=self.launch,
            gate=self.gate,
            results_dir=str(self.results),
            slurm=self.options,
            command=tuple(redact(argument) for argument in sys.argv),
            created_at=now(),
            mbr_perf=harness.__version__,
        )

    def checked(self, host: Host) -> SlurmJob:
        """The job as a value, in a folder that is not there. BadRequestError for what no batch file can hold."""
        return require_submittable(self.record(self.results / JOBS / "JOB"), host)


def _job_name(label: str) -> str:
    """What Slurm calls the job: only what a batch file can hold, the rest as ``-``."""
    safe = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in label)
    return f"mbr-perf.{safe}"[:64]


def hand_over(
    asked: JobRequest,
    slurm: SlurmRequest,
    host: Host,
    display: JobDisplay,
    judge: Callable[[JobRecord], ExitCode],
    refused: Callable[[JobRecord, BadRequestError], BadRequestError],
) -> ExitCode:
    """Make the job's folder and files, submit it and, unless it is to be left alone, wait for it and judge it.

    ``refused``: the error to raise where Slurm refuses the job.
    """
    controller = Slurm(host.shell)
    display.ignored(controller.ignored)
    job = prepare(asked.record(new_job_dir(asked.results, asked.label)), host)
    if not slurm.submit:
        display.prepared(job)
        return ExitCode.OK
    try:
        submitted = submit(job, controller)
    except BadRequestError as error:
        raise refused(job.record, error) from error
    display.submitted(job.record, submitted)
    if slurm.detach:
        display.detached(job.record, submitted)
        return ExitCode.OK
    return wait_and_judge(Path(job.record.job_dir), controller, display, judge)


def require_gpu_named(gpu: str) -> None:
    """BadRequestError where the request leaves the GPU to the machine that it is asked on."""
    if not gpu:
        raise BadRequestError(
            "--launcher slurm cannot see from here which GPUs the nodes have",
            remedy="name them with --gpu, or --gpu cpu",
        )


def require_submittable(record: JobRecord, host: Host) -> SlurmJob:
    """The job as a value. BadRequestError, everything at once, for what no batch file or ``job.json`` can hold."""
    job = slurm_job(record, host)
    job_text(record)
    return job


def prepare(record: JobRecord, host: Host) -> SlurmJob:
    """Write ``job.json`` and the batch file into the job's folder, which is there; nothing is submitted."""
    job = require_submittable(record, host)
    write_job(record)
    # Variables of the shell may hold bytes that are no UTF-8; they arrive as they are.
    write_bytes_atomically(job.script_path, job.render().encode("utf-8", "surrogateescape"))
    return job


def submit(job: SlurmJob, slurm: Slurm) -> SubmittedRecord:
    """Hand the job to Slurm. BadRequestError where it was before, or where Slurm refuses it."""
    job_dir = Path(job.record.job_dir)
    if (job_dir / SUBMITTED).exists():
        raise _twice(job_dir)
    return _noted(job, slurm.submit(job, now()), slurm)


def found_again(job: SlurmJob, slurm: Slurm) -> SubmittedRecord | None:
    """A job that Slurm took without saying so, as submitted from now on; None where it knows none.

    RunFailedError where it does not answer.
    """
    found = slurm.find(job, now())
    if isinstance(found, Said):
        told = f"Slurm does not say whether the job is queued: {found.err.strip()}"
        raise RunFailedError(told, remedy=f"squeue --name={job.record.name} tells")
    return None if found is None else _noted(job, found, slurm)


def _noted(job: SlurmJob, submitted: SubmittedRecord, slurm: Slurm) -> SubmittedRecord:
    job_dir = Path(job.record.job_dir)
    try:
        write_submitted(job_dir, submitted)
    except FileExistsError as error:  # two submitted it in the same instant: one job writes these folders, not two
        slurm.cancel(submitted)
        raise _twice(job_dir) from error
    return submitted


def submit_prepared(job_dir: Path, host: Host, slurm: Slurm) -> SubmittedRecord:
    """Submit the files of a folder as they lie there; a job of theirs that is queued already is taken up."""
    record = read_job(job_dir)
    if Path(record.job_dir).resolve() != job_dir.resolve():
        raise BadRequestError(
            f"{job_dir}: was prepared as {record.job_dir}, where its runs and logs would go",
            remedy="move it back, or prepare the job anew",
        )
    for run in record.runs:  # those of a job that Slurm refused before are gone
        make_folder(Path(run.run_dir))
    job = slurm_job(record, host)
    is_new = not (job_dir / SUBMITTED).exists()
    return (found_again(job, slurm) if is_new else None) or submit(job, slurm)


def _twice(job_dir: Path) -> BadRequestError:
    return BadRequestError(f"{job_dir}: was submitted before", remedy=f"mbr-perf jobs status {job_dir}")
