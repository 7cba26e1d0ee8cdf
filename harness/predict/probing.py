"""The planner's constants from operations that were measured by themselves."""

from collections.abc import Iterable, Sequence

from harness.experiment.gpu import GpuType
from harness.predict.time_model import KERNEL_S
from harness.records.calibration import ProbedRow

# A row counts only if the host launches it in at most this share of its seconds, and if its arithmetic or its bytes,
# of which the constant is, take at least half of them.
_LAUNCHED = 0.9
_LEAST_SHARE = 0.5
_CALLS = {"launch_s": 1, "call_s": 3}  # a linear layer makes three products


def constants_of(rows: Sequence[ProbedRow], gpu: GpuType) -> dict[str, float]:
    """Return the constants that the rows determine, by the time model's own sums (`time_model._compute`)."""
    flops, found = gpu.peak_flops, dict[str, float]()
    peaks = {"gemm_bf16": flops["bf16"], "gemm_low_precision": flops.get("fp8"), "attention": flops["bf16"]}
    on_gpu = [row for row in rows if row.host_s <= _LAUNCHED * row.seconds]
    moving = [row for row in on_gpu if row.of == "memory"]
    if moving:
        found["memory"] = sum(row.moved_bytes for row in moving) / _seconds(moving) / gpu.memory_bandwidth
    per_s = found.get("memory", 1.0) * gpu.memory_bandwidth
    for name, peak in peaks.items():
        own = [(row, row.seconds - KERNEL_S - (row.moved_bytes / per_s if name != "attention" else 0.0))
               for row in on_gpu if row.of == name]  # fmt: skip
        kept = [(row, rest) for row, rest in own if rest >= _LEAST_SHARE * row.seconds]
        if kept and peak:
            found[name] = sum(row.flops for row, _ in kept) / sum(rest for _, rest in kept) / peak
    found |= {row.of: row.host_s / _CALLS[row.of] for row in rows if row.of in _CALLS}
    return found


def _seconds(rows: Iterable[ProbedRow]) -> float:
    return sum(row.seconds - KERNEL_S for row in rows)
