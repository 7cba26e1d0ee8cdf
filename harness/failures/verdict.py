"""Holds why memory ran out: the figures of torch's allocator, the verdict, and its thresholds."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self, cast

from harness.experiment.gpu import GPUS
from harness.records.strict_yaml import table_in
from harness.units import GIB


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """A process that torch listed. ``used_bytes``: on the device; None if the driver does not report it."""

    pid: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class AllocatorFigures:
    """Bytes, to the two decimals that torch prints; None if the text has no figure.

    ``allocated``: live tensors and everything in private pools. ``unallocated``: reserved and free, after cached blocks
    were released. ``allowed``: the limit that the process set itself, which ``is_rejected`` says refused the request.
    """

    tried_bytes: int | None = None
    device: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    this_process_bytes: int | None = None
    processes: tuple[ProcessMemory, ...] = ()
    allowed_bytes: int | None = None
    allocated_bytes: int | None = None
    private_pool_bytes: int | None = None
    unallocated_bytes: int | None = None
    is_beyond_counting: bool = False
    is_rejected: bool = False

    @property
    def reserved_bytes(self) -> int | None:
        if self.allocated_bytes is None or self.unallocated_bytes is None:
            return None
        return self.allocated_bytes + self.unallocated_bytes

    @property
    def own_bytes(self) -> int | None:
        """``this_process``; None if the allocator holds more, as in a container where NVML cannot see the process."""
        if self.this_process_bytes is None:
            return None
        is_possible = self.this_process_bytes + THRESHOLDS["rounding_bytes"] >= (self.reserved_bytes or 0)
        return self.this_process_bytes if is_possible else None


OomClass = Literal[
    "fragmentation", "capacity", "cuda_graph_pools", "other_process", "outside_allocator", "self_imposed_limit",
    "host_memory", "killed", "bad_size", "time_limit", "node_failure", "not_oom", "unknown",
]  # fmt: skip
Confidence = Literal["high", "medium", "low"]
NOT_MEMORY: frozenset[OomClass] = frozenset({"not_oom", "killed", "time_limit", "node_failure", "unknown"})


_NAMES = {
    "not_oom": "Not memory", "other_process": "Another process has the memory", "capacity": "Too little memory",
    "outside_allocator": "Memory outside torch's allocator", "self_imposed_limit": "Memory limit of the job",
    "cuda_graph_pools": "Pools of CUDA graphs", "bad_size": "Impossible size",
}  # fmt: skip


def class_name(oom_class: str) -> str:
    """Name a class on pages: ``bad_size`` is ``Impossible size``, others are their own words."""
    return _NAMES.get(oom_class, oom_class.replace("_", " ").capitalize())


@cache
def table() -> dict[str, Any]:
    """Return failures.yaml, which explains itself."""
    return cast(dict[str, Any], table_in(Path(__file__).with_name("failures.yaml")))


@dataclass(frozen=True, slots=True)
class OomVerdict:
    """The cause of a failure. ``advice``: if not of the class. ``has_activations``: False outside of training steps."""

    oom_class: OomClass
    confidence: Confidence
    reason: str
    request_bytes: int | None = None
    figures: AllocatorFigures | None = None
    advice: str = ""
    entry: str = ""
    has_activations: bool = True
    recompute_helps: bool = True

    @classmethod
    def of_ending(cls, name: str, **values: object) -> Self:
        """Return a verdict of ``endings`` in failures.yaml, with ``values`` in its texts."""
        row = table()["endings"][name]
        cause, advice = (row.get(key, "").format(**values) for key in ("cause", "next"))
        return cls(row.get("class", "not_oom"), row.get("sure", "high"), cause, advice=advice)

    @property
    def next_experiment(self) -> str:
        return self.advice or str(table()["advice"][self.oom_class])

    @property
    def is_oom(self) -> bool:
        return self.oom_class not in NOT_MEMORY


# Shares of the device's memory, and bytes.
THRESHOLDS = {
    "fragmented_share": 0.05,  # reserved but unallocated; a GPU that is simply full also has remainders up to this size
    "slightly_fragmented_share": 0.01,  # below, even a tiny request fails on a full GPU
    "surely_fragmented_share": 0.10,  # so much reserved memory would have held the request but for its pieces
    "mostly_live_share": 0.90,  # with more live tensors, the next larger request fails without fragmentation
    "pool_share": 0.05,  # smaller private pools would not have made enough room
    "sure_pool_share": 0.10,  # larger pools are a main use of memory, not a side effect
    "outside_bytes": 4 * GIB,  # CUDA context, NCCL buffers and workspaces of one process usually stay below it
    "outside_share": 0.05,  # the same as a share, for devices where 4 GiB are little
    "foreign_bytes": 1 * GIB,  # less than a CUDA context and a few tensors: a monitor or a display, not a job
    "large_share": 0.25,  # for one request: above it, that tensor is the cause, whatever else the device holds
    "impossible_share": 2.0,  # for one request: a large tensor may be intended up to this size
    "impossible_host_bytes": 64 * 1024 * GIB,  # for one request of host memory: no node has that much
    "full_share": 0.80,  # with more live tensors, the device is certainly full
    "rounding_bytes": 0.02 * GIB,  # sums of up to four figures that torch rounds to 0.01 GiB
}


def impossible_bytes() -> float:
    """Return the size above which a request is impossible on an unknown device."""
    return THRESHOLDS["impossible_share"] * max(row.memory_bytes for row in GPUS.values())
