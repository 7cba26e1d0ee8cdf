"""A job from value to queue: its files written first, then sbatch, then what sbatch answered."""

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import harness
from harness.errors import BadRequestError, RunFailedError
from harness.launch.environment import Host
from harness.launch.slurm.commands import Said, Slurm
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
        for inner in ("ranks", "logs"):
            (Path(run.run_dir) / inner).mkdir(mode=0o750, parents=True, exist_ok=True)
    job = slurm_job(record, host)
    is_new = not (job_dir / SUBMITTED).exists()
    return (found_again(job, slurm) if is_new else None) or submit(job, slurm)


def _twice(job_dir: Path) -> BadRequestError:
    return BadRequestError(f"{job_dir}: was submitted before", remedy=f"mbr-perf jobs status {job_dir}")
