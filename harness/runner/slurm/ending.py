"""Why Slurm ended a run inside its job: SIGTERM says only that it did, the note of the job and the controller say why."""

from pathlib import Path

from harness.launch.environment import Host
from harness.launch.slurm.commands import Slurm
from harness.launch.slurm.state import TaskState, from_scontrol
from harness.records.job import JobRecord, SubmittedRecord, time_limit_note
from harness.runner.slurm.place import SlurmPlace

# While a job is coming to its end Slurm names the state COMPLETING, and tells by the reason what it will be.
_BY_REASON = {"NodeDown": "NODE_FAIL", "TimeLimit": "TIMEOUT", "Preempted": "PREEMPTED"}
_BY_STATE = frozenset({"NODE_FAIL", "TIMEOUT", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL"})


def why_slurm_ended_it(job: JobRecord, place: SlurmPlace, host: Host) -> str:
    """What the record of an interrupted run says as its failure; empty where somebody cancelled it, or nobody knows."""
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
