"""Faults of the machines under a run, by name: the only failures that may be tried again, each attempt recorded.

Not among them, whatever else is in the text: running out of memory, hangs and time limits, illegal memory accesses and
NCCL timeouts, all of which the code under test can cause.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from harness.records.run import RunRecord


@dataclass(frozen=True)
class InfrastructureFault:
    """One row. ``pattern``: a regular expression for the words by which it is known; ``is_retried``: whether that helps.

    A fault that is not retried stays until somebody acts, like a full disk.
    """

    name: str
    pattern: str
    is_retried: bool
    remedy: str


FAULTS: tuple[InfrastructureFault, ...] = (
    InfrastructureFault("GPU lost", r"GPU is lost|GPU_IS_LOST|fallen off the bus|NVML 15\b", False,
                        "drain the node; the GPU needs a reset or a reboot"),
    InfrastructureFault("GPU memory error", r"uncorrectable ECC|ECC error|cudaErrorECCUncorrectable", False,
                        "drain the node and look at nvidia-smi -q -d ECC"),
    InfrastructureFault("NVLink error", r"uncorrectable NVLink|cudaErrorNvlinkUncorrectable", False,
                        "drain the node and look at nvidia-smi nvlink -e"),
    InfrastructureFault("port taken", r"EADDRINUSE|address already in use", True,
                        "another run took the port between choosing and using it"),
    InfrastructureFault("disk full", r"disk full|No space left on device|ENOSPC", False,
                        "free some space where results are written"),
    InfrastructureFault("node failed", r"\bNODE_FAIL\b", True, "Slurm lost the node; another may be given"),
    InfrastructureFault("job failed to start", r"\bBOOT_FAIL\b|\bLAUNCH_FAILED\b", True,
                        "Slurm could not start the job on its nodes"),
    InfrastructureFault("refused by Slurm", r"^Slurm refused the job: ", False,
                        "ask for what the cluster gives: its own words say what it does not"),
    InfrastructureFault("Slurm not reached", r"^Slurm could not be reached: ", True,
                        "its controller did not answer; sinfo tells whether it does now"),
    InfrastructureFault("preempted", r"\bPREEMPTED\b", True, "another job was given the nodes"),
)  # fmt: skip

_NEVER_STATUS = ("ok", "oom", "interrupted")
_NEVER_KINDS = ("oom", "hang", "timeout", "non_finite_loss")
_NEVER_TEXT = re.compile(
    r"illegal memory access|Watchdog caught collective|collective operation timeout", re.IGNORECASE
)


def infrastructure_fault(record: RunRecord) -> InfrastructureFault | None:
    """The fault behind a failed run; None where none is named, or where the code under test may be the cause."""
    texts = _texts(record)
    kinds = {rank.failure.kind for rank in record.ranks if rank.failure}
    never = record.status in _NEVER_STATUS or kinds.intersection(_NEVER_KINDS)
    if never or any(_NEVER_TEXT.search(text) for text in texts):
        return None
    return fault_in(texts)


def fault_in(texts: Iterable[str]) -> InfrastructureFault | None:
    """The first row that any of ``texts`` names: also for a run without a record, of which only Slurm's state is known."""
    listed = tuple(texts)
    return next((row for row in FAULTS if any(re.search(row.pattern, one, re.IGNORECASE) for one in listed)), None)


def _texts(record: RunRecord) -> tuple[str, ...]:
    """What was written down about the end. Notes are left out: they also tell of faults that were got over."""
    ranks = [rank.failure.message for rank in record.ranks if rank.failure]
    samplers = [error for node in record.nodes for error in (node.error, *(d.error for d in node.devices)) if error]
    return (*filter(None, [record.failure]), *ranks, *samplers)
