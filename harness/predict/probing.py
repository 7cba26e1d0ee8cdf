"""The planner's constants from operations that were measured by themselves."""

import re
from collections.abc import Iterable, Sequence
from math import inf
from statistics import fmean

from harness.experiment.gpu import GpuType
from harness.predict.products import slowdown
from harness.predict.time_model import AGAIN, CALL, KERNEL_S, typical
from harness.records.calibration import ProbedRow

# A row counts only if the host launches it in at most this share of its seconds, and if its arithmetic or its bytes,
# of which the constant is, take at least half of them.
_LAUNCHED = 0.9
_LEAST_SHARE = 0.5
_PRODUCT = re.compile(r"(\d+) x (\d+) x (\d+) (forward|input gradient|weight gradient|gradients)$")
_CALLS = {"launch_s": 1, "call_s": 3}  # a linear layer makes three products


def constants_of(rows: Sequence[ProbedRow], gpu: GpuType) -> dict[str, float]:
    """Return the constants that the rows determine, by the time model's own sums (`time_model._compute`)."""
    on_gpu = [row for row in rows if row.host_s <= _LAUNCHED * row.seconds]
    moving = [row for row in on_gpu if row.of == "memory"]
    found = (
        {"memory": sum(row.moved_bytes for row in moving) / _seconds(moving) / gpu.memory_bandwidth} if moving else {}
    )
    per_s, flops = found.get("memory", 1.0) * gpu.memory_bandwidth, gpu.peak_flops
    peaks = {"gemm_bf16": flops["bf16"], "gemm_low_precision": flops.get("fp8"), "attention": flops["bf16"]}
    for name, peak in peaks.items():
        measured = [row for row in on_gpu if row.of == name]
        share = _share(measured, peak or 0.0, inf if name == "attention" else per_s, gpu.multiprocessors)
        found |= {name: share} if share else {}
    return found | {row.of: row.host_s / _CALLS[row.of] / _of_processor(row.of) for row in rows if row.of in _CALLS}


def _of_processor(name: str) -> float:
    """Return the share of the model's seconds that the processor takes; the rest are waits in a step."""
    own = typical("h100")
    return AGAIN if name == "launch_s" else AGAIN * CALL * own.launch_s / own.call_s


def _share(rows: Iterable[ProbedRow], peak: float, bytes_per_s: float, num: int) -> float | None:
    """Return the share of the peak at which these operations compute in full waves; None where none says it."""
    computing = ((row, row.seconds - KERNEL_S - row.moved_bytes / bytes_per_s) for row in rows)
    kept = [(row.flops, rest / _slowdown(row, num)) for row, rest in computing if rest >= _LEAST_SHARE * row.seconds]
    return sum(flops for flops, _ in kept) / sum(rest for _, rest in kept) / peak if kept and peak else None


def _slowdown(row: ProbedRow, num: int) -> float:
    """Return the slowdown by shape of a row that names ``tokens x inner x outer``, and 1 of any other row."""
    if not (sizes := _PRODUCT.match(row.what)):
        return 1.0
    tokens, inner, outer = map(int, sizes.groups()[:3])
    forward, of_input, of_weight = (1, tokens, outer), (1, tokens, inner), (1, outer, inner)
    outputs = {"forward": [forward], "input gradient": [of_input], "weight gradient": [of_weight]}
    return fmean(slowdown(output, num) for output in outputs.get(sizes[4], [of_input, of_weight]))


def _seconds(rows: Iterable[ProbedRow]) -> float:
    return sum(row.seconds - KERNEL_S for row in rows)
