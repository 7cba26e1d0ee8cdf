"""A job from value to queue: its files written first, then sbatch, then what sbatch answered."""

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import harness
from harness.errors import BadRequestError
from harness.launch.environment import Host
from harness.launch.slurm.commands import Slurm
from harness.launch.slurm.job import SlurmJob, slurm_job
from harness.records.atomic import write_bytes_atomically
from harness.records.job import SUBMITTED, JobRecord, SubmittedRecord
from harness.records.jobs import job_text, read_job, write_job, write_submitted
from harness.records.redact import redact


def now() -> str:
    """UTC, ISO-8601, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Origin:
    """Who made a job's record: the command, redacted, and when."""

    command: tuple[str, ...]
    created_at: str
    mbr_perf: str = harness.__version__

    @classmethod
    def here(cls) -> "Origin":
        """The command that runs, now."""
        return cls(tuple(redact(argument) for argument in sys.argv), now())


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
    submitted = slurm.submit(job, now())
    try:
        write_submitted(job_dir, submitted)
    except FileExistsError as error:  # two submitted it in the same instant: one job writes these folders, not two
        slurm.cancel(submitted)
        raise _twice(job_dir) from error
    return submitted


def submit_prepared(job_dir: Path, host: Host, slurm: Slurm) -> SubmittedRecord:
    """Submit the files of a folder as they lie there."""
    record = read_job(job_dir)
    if Path(record.job_dir).resolve() != job_dir.resolve():
        raise BadRequestError(
            f"{job_dir}: was prepared as {record.job_dir}, where its runs and logs would go",
            remedy="move it back, or prepare the job anew",
        )
    for run in record.runs:  # those of a job that Slurm refused before are gone
        for inner in ("ranks", "logs"):
            (Path(run.run_dir) / inner).mkdir(mode=0o750, parents=True, exist_ok=True)
    return submit(slurm_job(record, host), slurm)


def _twice(job_dir: Path) -> BadRequestError:
    return BadRequestError(f"{job_dir}: was submitted before", remedy=f"mbr-perf jobs status {job_dir}")
