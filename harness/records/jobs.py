"""Job folders on disk: ``jobs/<UTC time>-<name>-<hex>`` with ``job.json``, the batch file, logs, and what sbatch answered."""

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import BadRequestError
from harness.records.atomic import write_once
from harness.records.folders import folder_named, folders, new_folder
from harness.records.job import JOB, LOGS, SUBMITTED, JobRecord, SubmittedRecord
from harness.records.store import results_dir
from harness.records.strict_json import read_document

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
