"""States and reasons of jobs."""

import re
from collections.abc import Mapping
from typing import Literal, get_args

from harness.show.json import Shown

Kind = Literal[
    "queued", "running", "finished", "failed", "timeout", "node_fail", "out_of_memory", "launch_failed", "cancelled",
    "preempted", "purged", "unreachable",
]  # fmt: skip

_WORDS: Mapping[Kind, str] = {
    "queued": "PENDING CONFIGURING REQUEUED REQUEUE_FED REQUEUE_HOLD SPECIAL_EXIT RESV_DEL_HOLD",
    "running": "RUNNING COMPLETING RESIZING SIGNALING STAGE_OUT STOPPED SUSPENDED",
    "finished": "COMPLETED",
    "failed": "FAILED",
    "timeout": "TIMEOUT DEADLINE",
    "node_fail": "NODE_FAIL BOOT_FAIL",
    "launch_failed": "LAUNCH_FAILED RECONFIG_FAIL",
    "out_of_memory": "OUT_OF_MEMORY",
    "cancelled": "CANCELLED REVOKED",
    "preempted": "PREEMPTED",
}
STATES: Mapping[str, Kind] = {word: kind for kind, words in _WORDS.items() for word in words.split()}

# Kinds of a job that has ended.
ENDED: frozenset[Kind] = frozenset(get_args(Kind)) - {"queued", "running", "unreachable"}
# Of those, the ones in which the cluster knows better than the ranks why they ended.
CLUSTER_ENDED_IT: frozenset[Kind] = ENDED - {"finished", "failed", "purged"}

# A failed job whose reason says that its script never came to run; signal 53 is Slurm's for a log that it cannot open.
LAUNCH_REASONS = frozenset({"JobLaunchFailure", "RaisedSignal:53(Real-time_signal_19)"})

# Reasons of a job that waits in vain: it requests something that it can never get.
NEVER = frozenset({
    "AccountNotAllowed", "AssocMaxCpuPerJobLimit", "AssocMaxGRESPerJob", "AssocMaxMemPerJob", "AssocMaxNodePerJobLimit",
    "AssocMaxWallDurationPerJobLimit", "BadConstraints", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS",
    "MaxMemPerLimit", "PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "QOSMaxCpuPerJobLimit",
    "QOSMaxGRESPerJob", "QOSMaxMemoryPerJob", "QOSMaxNodePerJobLimit", "QOSMaxWallDurationPerJobLimit", "QOSNotAllowed",
    "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError",
})  # fmt: skip

# Reasons that a person set or must remove.
HELD = frozenset({
    "JobHeldAdmin", "JobHeldUser", "JobHoldMaxRequeue", "ReservationDeleted", "launch_failed_requeued_held",
    "job_requeued_in_held_state", "PartitionDown", "PartitionInactive",
})  # fmt: skip


_FIELD = re.compile(r"(?:^|\s)(JobState|Reason|Restarts|ExitCode|NodeList)=(\S*)")
_NOTHING = frozenset({"", "(null)", "None", "N/A", "None assigned"})


class JobState(Shown):
    """The state of a job. ``state`` and ``reason``: the cluster's words."""

    kind: Kind
    state: str
    reason: str = ""
    exit_code: str = ""
    restarts: int = 0
    nodes: str = ""

    @property
    def has_ended(self) -> bool:
        return self.kind in ENDED

    @property
    def never_starts(self) -> bool:
        """The job waits in vain, or is held after a requeue: mbr-perf does not continue half a run."""
        return self.kind == "queued" and (self.reason in NEVER or (self.restarts > 0 and self._is_held))

    @property
    def text(self) -> str:
        if self.kind == "unreachable":
            return f"unknown: {self.reason}"
        if self.kind == "purged":
            return "gone: the cluster does not know the job any more, and has no accounting for it"
        reason = f" ({self.reason})" if self.reason else ""
        nodes = f" on {self.nodes}" if self.nodes else ""
        times = f", requeued {self.restarts} time{'s' if self.restarts > 1 else ''}" if self.restarts else ""
        hint = "; it is held, release it with scontrol release" if self._is_held else ""
        hint = "; it can never start with these options" if self.never_starts else hint
        return f"{self.state}{reason}{nodes}{times}{hint}"

    @property
    def _is_held(self) -> bool:
        return self.kind == "queued" and self.reason in HELD


def from_scontrol(text: str) -> JobState | None:
    """Parse ``scontrol -o show job``."""
    found = dict(_FIELD.findall(text.partition("\n")[0]))
    if "JobState" not in found:
        return None
    return _state(
        found["JobState"],
        reason=found.get("Reason", ""),
        exit_code=found.get("ExitCode", ""),
        restarts=int(found.get("Restarts") or 0),
        nodes=found.get("NodeList", ""),
    )


def from_sacct(text: str) -> JobState | None:
    """Parse ``sacct --parsable2 --format=State,ExitCode,NodeList``."""
    parts = text.partition("\n")[0].split("|")
    return _state(parts[0], exit_code=parts[1], nodes=parts[2]) if len(parts) == 3 else None


def _state(word: str, *, reason: str = "", exit_code: str = "", restarts: int = 0, nodes: str = "") -> JobState:
    """``word`` may carry more: ``CANCELLED by 1000``, ``CANCELLED+``."""
    name = word.strip().partition(" ")[0].rstrip("+*")
    kind = STATES.get(name)
    # What a job waited for stays in the reason of one that runs or was cancelled; one that is ending has its own.
    is_stale = kind in ("running", "finished", "cancelled") and name != "COMPLETING"
    reason = "" if reason in _NOTHING or is_stale else reason
    if kind == "failed" and reason in LAUNCH_REASONS:
        kind = "launch_failed"
    if kind is None:  # a word of a newer Slurm: nothing is concluded from it
        kind, reason = "unreachable", f"Slurm reports {name}, which this mbr-perf does not know"
    return JobState(
        kind=kind,
        state=name,
        reason=reason,
        exit_code=exit_code,
        restarts=restarts,
        nodes="" if nodes in _NOTHING else nodes,
    )
