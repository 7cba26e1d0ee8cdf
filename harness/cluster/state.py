"""States and reasons of Slurm jobs."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from harness.cluster.commands import Answer, Slurm
from harness.records.job import SubmittedRecord

Kind = Literal[
    "queued", "running", "finished", "failed", "timeout", "node_fail", "out_of_memory", "launch_failed", "cancelled",
    "preempted", "purged", "unreachable",
]  # fmt: skip

# Kinds of a job that has ended.
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

# Reasons of a job that waits in vain: it requests something that it can never get.
NEVER = frozenset({
    "AccountNotAllowed", "AssocMaxCpuPerJobLimit", "AssocMaxGRESPerJob", "AssocMaxMemPerJob", "AssocMaxNodePerJobLimit",
    "AssocMaxWallDurationPerJobLimit", "BadConstraints", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS",
    "MaxMemPerLimit", "PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "QOSMaxCpuPerJobLimit",
    "QOSMaxGRESPerJob", "QOSMaxMemoryPerJob", "QOSMaxNodePerJobLimit", "QOSMaxWallDurationPerJobLimit", "QOSNotAllowed",
})  # fmt: skip

# Reasons that a person set or must remove.
HELD = frozenset({
    "JobHeldAdmin", "JobHeldUser", "JobHoldMaxRequeue", "ReservationDeleted", "launch_failed_requeued_held",
    "job_requeued_in_held_state", "PartitionDown", "PartitionInactive",
})  # fmt: skip


_FIELD = re.compile(r"(?:^|\s)(JobState|Reason|Restarts|ExitCode|NodeList|ArrayTaskId)=(\S*)")
_GONE = ("Invalid job id", "Invalid job ids", "Invalid job array")
_NOTHING = frozenset({"", "(null)", "None", "N/A"})
_NUMBERS = re.compile(r"(\d+)(?:-(\d+))?(?::(\d+))?")


@dataclass(frozen=True)
class TaskState:
    """One task of an array, or the job. ``slurm``: Slurm's own word. ``tasks``: its numbers; a waiting array shows as one.

    ``reason``: why it waits or why it ended, in Slurm's word; ``detail`` e.g. ``by 1000``. ``source``: who said so.
    """

    kind: Kind
    slurm: str
    reason: str = ""
    detail: str = ""
    exit_code: str = ""
    restarts: int = 0
    nodes: str = ""
    tasks: tuple[int, ...] = (0,)
    source: str = ""

    @property
    def has_ended(self) -> bool:
        """Return whether nothing of it runs any more."""
        return self.kind in ENDED

    @property
    def never_starts(self) -> bool:
        """Return whether the job waits in vain, or is held after a requeue: mbr-perf does not continue half a run."""
        return self.kind == "queued" and (self.reason in NEVER or (self.restarts > 0 and self._is_held))

    @property
    def text(self) -> str:
        """Return one line for people: Slurm's words, and what a waiting job waits for."""
        if self.kind == "unreachable":
            return f"unknown: {self.reason}"
        if self.kind == "purged":
            return "gone: Slurm does not know the job any more, and has no accounting for it"
        state = f"{self.slurm} {self.detail}".strip()
        reason = f" ({self.reason})" if self.reason else ""
        nodes = f" on {self.nodes}" if self.nodes else ""
        times = f", requeued {self.restarts} time{'s' if self.restarts > 1 else ''}" if self.restarts else ""
        hint = "; it is held, release it with scontrol release" if self._is_held else ""
        hint = "; it can never start with these options" if self.never_starts else hint
        return f"{state}{reason}{nodes}{times}{hint}"

    @property
    def _is_held(self) -> bool:
        return self.kind == "queued" and self.reason in HELD


def job_state(slurm: Slurm, job: SubmittedRecord) -> tuple[TaskState, ...]:
    """Return one state per task that Slurm lists: by the controller, else its queue, else accounting.

    Never empty: a job that nobody knows is ``purged``, one that nobody could be asked about ``unreachable``.
    """
    sources: tuple[tuple[Callable[[SubmittedRecord], Answer], Callable[[str], tuple[TaskState, ...]]], ...] = (
        (slurm.show, from_scontrol), (slurm.queue, from_squeue), (slurm.account, from_sacct),
    )  # fmt: skip
    is_gone, why = False, ""
    for ask, read in sources:
        answer = ask(job)
        found = read(answer.out) if answer.code == 0 else ()
        if found:
            return found
        if answer.code is not None and (answer.code == 0 or any(word in answer.err for word in _GONE)):
            is_gone = True
        elif not is_gone and not why:
            why = _last_line(answer.err)
        if not is_gone and _is_silent(answer):
            break  # each command waits long for a controller that is not there
    if is_gone:
        return (TaskState("purged", "UNKNOWN", source="nobody"),)
    return (TaskState("unreachable", "UNKNOWN", reason=why or "no answer", source="nobody"),)


def from_scontrol(text: str) -> tuple[TaskState, ...]:
    """Parse ``scontrol -o show job``: a line per task."""
    found = []
    for line in text.splitlines():
        fields = dict(_FIELD.findall(line))
        if "JobState" in fields:
            tasks = _tasks(fields.get("ArrayTaskId", ""))
            found.append(
                _state(
                    fields["JobState"],
                    reason=fields.get("Reason", ""),
                    exit_code=fields.get("ExitCode", ""),
                    restarts=int(fields.get("Restarts") or 0),
                    nodes=fields.get("NodeList", ""),
                    tasks=tasks,
                    source="scontrol",
                )
            )
    return tuple(found)


def from_squeue(text: str) -> tuple[TaskState, ...]:
    """Parse ``squeue --format=%K|%T|%r|%N``."""
    found = []
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) == 4:
            found.append(_state(parts[1], reason=parts[2], nodes=parts[3], tasks=_tasks(parts[0]), source="squeue"))
    return tuple(found)


def from_sacct(text: str) -> tuple[TaskState, ...]:
    """Parse ``sacct --parsable2 --format=JobID,State,ExitCode,NodeList``."""
    found = []
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) == 4:
            tasks = _tasks(parts[0].partition("_")[2].strip("[]"))
            nodes = "" if parts[3] == "None assigned" else parts[3]
            found.append(_state(parts[1], exit_code=parts[2], nodes=nodes, tasks=tasks, source="sacct"))
    return tuple(found)


def _state(
    word: str, *, source: str, tasks: tuple[int, ...], reason: str = "", exit_code: str = "", restarts: int = 0,
    nodes: str = "",
) -> TaskState:  # fmt: skip
    """``word`` may carry more: ``CANCELLED by 1000``, ``CANCELLED+``."""
    name, _, detail = word.strip().partition(" ")
    name = name.rstrip("+*")
    kind = STATES.get(name)
    # What a job had waited for stays behind in the reason of one that runs or was cancelled; one that is ending has its own.
    is_stale = kind in ("running", "finished", "cancelled") and name != "COMPLETING"
    reason = "" if reason in _NOTHING or is_stale else reason
    if kind == "failed" and reason in LAUNCH_REASONS:
        kind = "launch_failed"
    if kind is None:  # a word of a newer Slurm: nothing is concluded from it
        kind, reason = "unreachable", f"Slurm reports {name}, which this mbr-perf does not know"
    nodes = "" if nodes in _NOTHING else nodes
    return TaskState(kind, name, reason, detail, exit_code, restarts, nodes, tasks, source)


def _tasks(text: str) -> tuple[int, ...]:
    """Return ``0-2,5``, ``1-7:2`` and ``0-9%4`` as numbers; the one task 0 of a job without an array."""
    found: list[int] = []
    for part in text.partition("%")[0].split(","):
        match = _NUMBERS.fullmatch(part.strip())
        if match:
            first, last, step = match[1], match[2] or match[1], match[3] or "1"
            found += range(int(first), int(last) + 1, int(step))
    return tuple(found) or (0,)


def _is_silent(answer: Answer) -> bool:
    return "no answer" in answer.err or "Unable to contact" in answer.err or "timed out" in answer.err


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
