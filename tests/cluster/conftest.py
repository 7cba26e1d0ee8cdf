"""Records of jobs, as submission leaves them."""

from pathlib import Path

import pytest

from harness.records.job import JobRecord, JobRun, SlurmOptions, SubmittedRecord

SUBMITTED = SubmittedRecord(job_id="7", submitted_at="2026-01-02T03:04:05+00:00")


def job_record(job_dir, **changes):
    """The record of a job of half an hour."""
    fields = {
        "job_dir": str(job_dir), "name": "job", "what": "run", "subject": str(job_dir), "nnodes": 1,
        "options": SlurmOptions(time_limit_minutes=30), "command": ("mbr-perf", "run"),
        "created_at": "2026-01-02T03:04:05+00:00", "mbr_perf": "0.1.0",
    }  # fmt: skip
    return JobRecord(**fields | changes)


@pytest.fixture
def job_of(tmp_path):
    """A job of runs of this experiment, whose folders are there, as submission makes them."""

    def make(spec, num_runs=1, **changes):
        folders = [tmp_path / "runs" / str(number) for number in range(num_runs)]
        job_dir = tmp_path / "jobs" / "job"
        for folder in (*(run_dir / inner for run_dir in folders for inner in ("ranks", "logs")), job_dir / "logs"):
            folder.mkdir(parents=True)
        runs = tuple(JobRun(run_dir=str(folder), run_id=f"run-{folder.name}", spec=spec) for folder in folders)
        return job_record(job_dir, runs=runs, **changes)

    return make


def run_dir_of(job):
    """The folder of its first run."""
    return Path(job.runs[0].run_dir)
