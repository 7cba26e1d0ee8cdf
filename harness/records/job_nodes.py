"""What the nodes of a Slurm job write down for one another, and for whoever looks later: attempts, and where ranks meet."""

from pathlib import Path

from harness.records.rank import SCHEMA_VERSION
from harness.spec.frozen import Frozen

ATTEMPTS, MEETING = "attempts", "meeting.json"


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
