"""Why memory ran out: the figures that torch's allocator prints, the verdict, and the thresholds that it depends on."""

from dataclasses import dataclass
from typing import Literal

from harness.experiment.gpu import GPUS
from harness.units import GIB


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """A process that torch listed: ``used_bytes`` on the device, None where the driver did not tell."""

    pid: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class AllocatorFigures:
    """Bytes, to the two decimals that torch prints; None where the text does not say.

    ``allocated``: live tensors and everything in private pools, their free blocks too. ``private_pool``: the part of it
    in private pools. ``unallocated``: reserved by the allocator and free, when cached blocks had been given back
    already. ``this_process``: all that this process holds on the device. ``allowed``: the limit that the process set
    itself. ``is_beyond_counting``: asked for more than 1 EB. ``is_rejected``: refused by that limit beforehand.
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
        """All that the caching allocator holds."""
        if self.allocated_bytes is None or self.unallocated_bytes is None:
            return None
        return self.allocated_bytes + self.unallocated_bytes


OomClass = Literal[
    "fragmentation", "capacity", "cuda_graph_pools", "other_process", "outside_allocator", "self_imposed_limit",
    "host_memory", "killed", "bad_size", "time_limit", "node_failure", "not_oom",
]  # fmt: skip
Confidence = Literal["high", "medium", "low"]

NEXT_EXPERIMENT: dict[OomClass, str] = {
    "fragmentation": "Run it again with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True and nothing else changed "
    "(with CUDA graphs also NCCL_GRAPH_REGISTER=0): only a run that then fits proves fragmentation.",
    "capacity": "Recompute or shard more: `mbr-perf plan` names the cheapest setting that is predicted to fit.",
    "cuda_graph_pools": "Run it again without CUDA graphs (cuda_graph_impl=none) or with a narrower cuda_graph_scope.",
    "other_process": "Find out whose processes these are (nvidia-smi) and run it again on a device of its own.",
    "outside_allocator": "Leave torch's allocator less: a smaller micro-batch or more recompute. Then look for what the "
    "libraries hold: NCCL_DEBUG=INFO, fewer communicators, smaller workspaces.",
    "self_imposed_limit": "Raise or drop the limit (torch.cuda.set_per_process_memory_fraction, "
    "per_process_memory_fraction, or --memory_limit of mbr-perf) and run it again.",
    "host_memory": "Watch the memory of the node, not of the GPU: fewer data loader workers, less offloaded to the CPU, "
    "a larger --mem of the job; where memory could not be pinned, a larger `ulimit -l`.",
    "killed": "Ask who sent the signal: the kernel's log (dmesg, oom_kill of the cgroup), the scheduler's record of the job.",
    "bad_size": "Print the shapes before the call that failed: a size is negative, overflowed or multiplied once too "
    "often. Where it is meant (logits are micro-batch x sequence x vocabulary), cut the micro-batch or the sequence.",
    "time_limit": "Ask for more time, or fewer steps.",
    "node_failure": "Run it again without that node, and have the node examined.",
    "not_oom": "Read the first error of the rank that failed first; memory is not what ended it.",
}  # fmt: skip


_NOT_MEMORY: frozenset[OomClass] = frozenset({"not_oom", "killed", "time_limit", "node_failure"})


@dataclass(frozen=True, slots=True)
class OomVerdict:
    """``reason``: one sentence with the numbers that decided. ``request_bytes``: the allocation that failed.

    ``advice``: what to run next, where it is not that of the class.
    """

    oom_class: OomClass
    confidence: Confidence
    reason: str
    request_bytes: int | None = None
    figures: AllocatorFigures | None = None
    advice: str = ""

    @property
    def next_experiment(self) -> str:
        """What to run to be sure, or to get round it."""
        return self.advice or NEXT_EXPERIMENT[self.oom_class]

    @property
    def is_oom(self) -> bool:
        """Whether memory is what ran out; a kill -9 alone does not say."""
        return self.oom_class not in _NOT_MEMORY

    @property
    def line(self) -> str:
        """``class: fragmentation (high)``."""
        return f"class: {self.oom_class} ({self.confidence})"


@dataclass(frozen=True, slots=True)
class Threshold:
    """One row. ``value`` is a share of the device's memory, or bytes."""

    name: str
    value: float
    why: str


THRESHOLDS: tuple[Threshold, ...] = (
    Threshold("fragmented_share", 0.05,
              "reserved but unallocated: below it even a card that is simply full keeps such remainders"),
    Threshold("slightly_fragmented_share", 0.02,
              "between the two the remainders may be the cause; below, a tiny request fails at the edge of a full card"),
    Threshold("pool_share", 0.05, "private pools below it would not have made room for long"),
    Threshold("sure_pool_share", 0.10, "pools above it are a decision about memory, not a by-product"),
    Threshold("outside_bytes", 4 * GIB,
              "CUDA context, NCCL buffers and library workspaces of one process together usually stay below it"),
    Threshold("outside_share", 0.05, "the same, on a device where 4 GiB are little"),
    Threshold("foreign_bytes", 1 * GIB, "less than a CUDA context and a few tensors: a monitor or a display, not a job"),
    Threshold("impossible_share", 2.0,
              "of the device, for one request: up to it a large tensor may be meant, above it its size is wrong"),
    Threshold("impossible_host_bytes", 64 * 1024 * GIB, "for one request of host memory: no node has that much"),
    Threshold("full_share", 0.80, "live tensors above it leave no doubt that the device is full"),
    Threshold("rounding_bytes", 0.02 * GIB, "sums of up to four figures that torch rounds to 0.01 GiB"),
)  # fmt: skip

_VALUES = {row.name: row.value for row in THRESHOLDS}


def threshold(name: str) -> float:
    """The value of a row; KeyError for a name that the table does not have."""
    return _VALUES[name]


def impossible_bytes() -> float:
    """More than any one request on a device of which nothing is known."""
    return threshold("impossible_share") * max(row.memory_bytes for row in GPUS.values() if not row.is_cpu)
