"""Models by how much the shape of a matrix product makes it slower than its FLOPs at full rate."""

from collections.abc import Iterator
from functools import cache
from math import ceil
from statistics import fmean
from typing import NamedTuple

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.gpu import PeakKey
from harness.records.trace import Phase

# Rows and columns of the output that a multiprocessor computes at once, either way around: the largest tile of cuBLAS
# on A100, Hopper and Blackwell.
_TILE = (128, 256)
# Share of the multiprocessors without a tile in the last wave that stay idle. cuBLAS gives most of them work: smaller
# tiles, parts of the inner dimension. From the 195 products of an A100 in SimuMax 1.2 (configs/system/a100_pcie.json).
_IDLE = 0.4
_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp8": 1.0, "fp4": 0.5}


def slowdown(output: tuple[int, int, int], num: int) -> float:
    """Return the seconds over those of full tiles in full waves on ``num`` multiprocessors; at least 1.

    ``output``: number of products, rows and columns of each. Example: 8192 x 1280 on 132 multiprocessors has 320 tiles,
    2.42 waves of 3: 1.10.
    """
    groups, rows, columns = output
    low, high = _TILE
    tiles = groups * min(ceil(rows / low) * ceil(columns / high), ceil(rows / high) * ceil(columns / low))
    waves = tiles / num
    return (waves + _IDLE * (ceil(waves) - waves)) * num * low * high / (groups * rows * columns)


class Widths(NamedTuple):
    """What the products of a job have in common.

    ``rows``: tokens that a rank multiplies at once. ``widths``: of hidden and latent states. ``inside``: columns of an
    expert's first product, and rows of its second one. ``num``: multiprocessors.
    """

    rows: frozenset[int]
    widths: frozenset[int]
    num_experts: int
    inside: tuple[int, ...]
    is_trained: bool
    num: int

    @staticmethod
    def of(spec: ExperimentSpec) -> "Widths":
        """Return those of a request."""
        model, p, batch = spec.model, spec.parallelism, spec.batch
        tokens = batch.micro_batch_size * batch.seq_length // p.context_parallel_size
        latent = (model.mla.q_lora_rank, model.mla.kv_lora_rank) if model.mla else ()
        inside = model.moe.moe_ffn_hidden_size // p.expert_tensor_size if model.moe else 0
        return Widths(
            rows=frozenset((tokens, tokens // p.tensor_model_parallel_size)),
            widths=frozenset(filter(None, (model.hidden_size, *latent))),
            num_experts=model.moe.num_moe_experts // p.expert_model_parallel_size if model.moe else 0,
            inside=(inside, 2 * inside),
            is_trained=spec.peft is None,
            num=spec.gpu_type.multiprocessors,
        )


@cache
def slowdown_of(phase: Phase, dtype: PeakKey, flops: int, num_bytes: int, of: Widths) -> float:
    """Return the mean of :func:`slowdown` over the shapes that a product may have; 1 where none fits.

    Traces hold no m, n, k. One of the three is tokens of the rank, another a width of the model; the FLOPs give the
    third, and the bytes say which two are the output's.
    """
    found: dict[bool, list[float]] = {}
    for output, is_weight in _outputs(phase, dtype, flops // 2, num_bytes, of):
        found.setdefault(is_weight, []).append(slowdown(output, of.num))
    return fmean(map(fmean, found.values())) if found else 1.0


def _outputs(
    phase: Phase, dtype: PeakKey, volume: int, num_bytes: int, of: Widths
) -> Iterator[tuple[tuple[int, int, int], bool]]:
    """Yield the outputs that agree with FLOPs and bytes, and whether each is the gradient of a weight."""
    read = _BYTES[dtype]
    written = max(2.0, read)
    dense = [(1, rows, width, volume // (rows * width)) for rows in of.rows for width in of.widths]
    grouped = [(of.num_experts, volume // (w * f), w, f) for w in of.widths for f in of.inside if of.num_experts]
    for groups, tokens, width, other in dense + grouped:
        if tokens * width * other != volume:
            continue
        weight = width * other
        for columns, inner in ((other, width), (width, other)):
            if num_bytes == read * (tokens * inner + groups * weight) + written * tokens * columns:
                yield (groups, ceil(tokens / groups), columns), False
        if phase == "backward" and of.is_trained and num_bytes == read * tokens * (width + other) + written * weight:
            yield (groups, width, other), True
