"""Logs of a job: its own and those of its ranks, whole or as they grow."""

import time
from collections.abc import Callable
from pathlib import Path

from harness.errors import BadRequestError
from harness.launch.slurm.commands import Slurm
from harness.records.job import LOGS, JobRecord
from harness.runner.jobs.log_end import without_steering
from harness.runner.jobs.standing import standing

_LOOK_S, _ASK_EVERY = 0.5, 10
_READ_BYTES = 1 << 20

Write = Callable[[str], object]


def log_files(job: JobRecord, rank: int | None) -> tuple[Path, ...]:
    """The job's own logs, or those of one rank in every run that has one, oldest run first. They may not be there yet."""
    if rank is None:
        return tuple(sorted((Path(job.job_dir) / LOGS).glob("slurm-*.out")))
    return tuple(
        log for run in job.runs if (log := Path(run.run_dir) / "logs" / f"rank_{rank:03d}.log").is_file()
    )  # fmt: skip


def logs_document(job: JobRecord, rank: int | None) -> dict[str, object]:
    """The logs as for :func:`log_files`, each with its bytes so far, for programs (JSON)."""
    require_rank(job, rank)
    files = log_files(job, rank)
    return {
        "job_dir": job.job_dir,
        "rank": rank,
        "logs": [{"path": str(path), "num_bytes": path.stat().st_size} for path in files],
    }


def require_rank(job: JobRecord, rank: int | None) -> None:
    """BadRequestError for a rank that no run of the job has."""
    most = max((run.spec.num_gpus for run in job.runs), default=None)
    if rank is not None and most is not None and rank >= most:
        ranks = "rank 0 alone" if most == 1 else f"ranks 0 to {most - 1}"
        raise BadRequestError(f"{job.job_dir}: there is no rank {rank}", remedy=f"it has {ranks}")


def show_logs(job: JobRecord, rank: int | None, write: Write, tell: Write) -> None:
    """Write every log once. ``tell`` names each file. BadRequestError where there is none."""
    require_rank(job, rank)
    files = log_files(job, rank)
    if not files:
        whose = "of the job itself" if rank is None else f"of rank {rank}"
        raise BadRequestError(f"{job.job_dir}: no log {whose} yet", remedy=f"mbr-perf jobs status {job.job_dir}")
    reader = _Reader(write, tell)
    for path in files:
        while reader.read(path):
            pass


def follow_logs(job_dir: Path, job: JobRecord, rank: int | None, slurm: Slurm, write: Write, tell: Write) -> None:
    """Write what is there and what comes, until the job has ended."""
    require_rank(job, rank)
    reader, looks, ended = _Reader(write, tell), 0, False
    while True:
        for path in log_files(job, rank):
            while reader.read(path):
                pass
        if ended:
            return
        if looks % _ASK_EVERY == 0:
            now = standing(job_dir, slurm)
            ended = now.is_settled or (bool(now.states) and all(state.has_ended for state in now.states))
        looks += 1
        if not ended:
            time.sleep(_LOOK_S)


class _Reader:
    """Reads each file on from where it stopped; names it whenever another one was read before."""

    def __init__(self, write: Write, tell: Write) -> None:
        self._write, self._tell = write, tell
        self._offsets: dict[Path, int] = {}
        self._last: Path | None = None

    def read(self, path: Path) -> bool:
        """Write a piece of what is new; True when there was any."""
        with path.open("rb") as stream:
            stream.seek(self._offsets.get(path, 0))
            chunk = stream.read(_READ_BYTES)
        if not chunk:
            return False
        if path != self._last:
            self._tell(f"==> {path} <==")
            self._last = path
        self._offsets[path] = self._offsets.get(path, 0) + len(chunk)
        self._write(without_steering(chunk.decode(errors="replace")))
        return True
