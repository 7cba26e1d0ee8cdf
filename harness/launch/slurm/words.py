"""Slurm's words for states and reasons, as tables: what each means for a run."""

from typing import Literal

Kind = Literal[
    "queued", "running", "finished", "failed", "timeout", "node_fail", "out_of_memory", "launch_failed", "cancelled",
    "preempted", "purged", "unreachable",
]  # fmt: skip

# Kinds after which nothing of the job runs any more.
ENDED: frozenset[Kind] = frozenset(
    {"finished", "failed", "timeout", "node_fail", "out_of_memory", "launch_failed", "cancelled", "preempted", "purged"}
)
# Of those, the ones in which Slurm knows better than the ranks why they ended.
SLURM_ENDED_IT: frozenset[Kind] = frozenset(
    {"timeout", "node_fail", "out_of_memory", "launch_failed", "cancelled", "preempted"}
)

STATES: dict[str, Kind] = {
    "PENDING": "queued",
    "CONFIGURING": "queued",
    "REQUEUED": "queued",
    "REQUEUE_FED": "queued",
    "REQUEUE_HOLD": "queued",
    "SPECIAL_EXIT": "queued",
    "RESV_DEL_HOLD": "queued",
    "RUNNING": "running",
    "COMPLETING": "running",
    "RESIZING": "running",
    "SIGNALING": "running",
    "STAGE_OUT": "running",
    "STOPPED": "running",
    "SUSPENDED": "running",
    "COMPLETED": "finished",
    "FAILED": "failed",
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "NODE_FAIL": "node_fail",
    "BOOT_FAIL": "node_fail",
    "LAUNCH_FAILED": "launch_failed",
    "RECONFIG_FAIL": "launch_failed",
    "OUT_OF_MEMORY": "out_of_memory",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
    "PREEMPTED": "preempted",
}

# A failed job whose reason says that its script never came to run; signal 53 is Slurm's for a log that it cannot open.
LAUNCH_REASONS = frozenset({"JobLaunchFailure", "RaisedSignal:53(Real-time_signal_19)"})

# Reasons for which a job waits that no waiting cures: it asks for what it can never have.
NEVER = frozenset({
    "AccountNotAllowed", "AssocMaxCpuPerJobLimit", "AssocMaxGRESPerJob", "AssocMaxMemPerJob", "AssocMaxNodePerJobLimit",
    "AssocMaxWallDurationPerJobLimit", "BadConstraints", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS",
    "MaxMemPerLimit", "PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "QOSMaxCpuPerJobLimit",
    "QOSMaxGRESPerJob", "QOSMaxMemoryPerJob", "QOSMaxNodePerJobLimit", "QOSMaxWallDurationPerJobLimit", "QOSNotAllowed",
})  # fmt: skip

# Reasons that a person put there, or must take away.
HELD = frozenset({
    "JobHeldAdmin", "JobHeldUser", "JobHoldMaxRequeue", "ReservationDeleted", "launch_failed_requeued_held",
    "job_requeued_in_held_state", "PartitionDown", "PartitionInactive",
})  # fmt: skip
