"""Where in a Slurm job this process is: the node, the task of an array, and which attempt it is."""

from collections.abc import Mapping
from dataclasses import dataclass

from harness.errors import BadRequestError, raise_all
from harness.records.job import JobRecord


@dataclass(frozen=True)
class SlurmPlace:
    """Of Slurm's own variables. ``task``: index in the array, 0 without one. ``restart_count``: times it was requeued."""

    job_id: str
    task: int
    restart_count: int
    node_rank: int
    nnodes: int
    nodes: str


def slurm_place(shell: Mapping[str, str]) -> SlurmPlace:
    """Read from the environment that srun makes. BadRequestError, all at once, for what is missing or no number."""
    problems: list[BadRequestError] = []

    def number(name: str, absent: int | None = None) -> int:
        text = shell.get(name, "" if absent is None else str(absent))
        if text.isdecimal():
            return int(text)
        told = f"{name}={text!r} is no number" if text else f"{name} is not set"
        problems.append(BadRequestError(told, remedy="srun sets it: start this inside a job, one task per node"))
        return 0

    job = number("SLURM_JOB_ID")
    place = SlurmPlace(
        job_id=str(job),
        task=number("SLURM_ARRAY_TASK_ID", 0),
        restart_count=number("SLURM_RESTART_COUNT", 0),
        node_rank=number("SLURM_NODEID"),
        nnodes=number("SLURM_NNODES"),
        nodes=shell.get("SLURM_JOB_NODELIST", ""),
    )
    raise_all(problems)
    return place


def node_count_problem(job: JobRecord, place: SlurmPlace) -> str:
    """One sentence where Slurm gave another number of nodes than the job was planned for; else empty."""
    if place.nnodes == job.nnodes:
        return ""
    return f"Slurm gave {place.nnodes} nodes ({place.nodes}), the job was planned for {job.nnodes}"
