"""What kind of out-of-memory failure it was, how sure that is, and what would show it."""

from dataclasses import dataclass
from typing import Literal

from harness.analysis.oom.figures import AllocatorFigures

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
