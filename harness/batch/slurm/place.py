"""Where in a Slurm job this process is, and why Slurm ended a run inside the job."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BadRequestError, raise_all
from harness.launch.environment import Host
from harness.launch.slurm.commands import Slurm
from harness.launch.slurm.state import TaskState, from_scontrol
from harness.records.job import JobRecord, SubmittedRecord, time_limit_note


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


# While a job is coming to its end Slurm names the state COMPLETING, and tells by the reason what it will be.
_BY_REASON = {"NodeDown": "NODE_FAIL", "TimeLimit": "TIMEOUT", "Preempted": "PREEMPTED"}
_BY_STATE = frozenset({"NODE_FAIL", "TIMEOUT", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL"})


def why_slurm_ended_it(job: JobRecord, place: SlurmPlace, host: Host) -> str:
    """What the record of an interrupted run says as its failure; empty where someone cancelled it, or the reason is unknown."""
    if time_limit_note(Path(job.job_dir), place.task).exists():
        return f"Slurm: TIMEOUT: the time limit of {job.slurm.time_limit_minutes} min came near"
    asked = SubmittedRecord(job_id=place.job_id, submitted_at="", sbatch=())
    said = Slurm(host.shell).show(asked)
    states = from_scontrol(said.out) if said.code == 0 else ()
    return told_by(states[0], place.nnodes) if states else ""


def told_by(state: TaskState, nnodes: int) -> str:
    """The same from what the controller says of the job at that moment."""
    name = _BY_REASON.get(state.reason) or (state.slurm if state.slurm in _BY_STATE else "")
    if name:
        reason = f" ({state.reason})" if state.reason else ""
        return f"Slurm: {name}{reason} on {state.nodes}"
    if state.slurm == "RUNNING" and nnodes > 1:
        return "Slurm: STEP ENDED, and not the job: its task on another node ended badly, see the job's log"
    return ""
