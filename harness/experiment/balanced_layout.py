"""Derives the pipeline layout whose slowest rank has the least to do."""

from functools import lru_cache
from itertools import accumulate

from harness.experiment.communication import group_bandwidth
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.flops import FORWARD_AND_BACKWARD, end_flops, layer_flops
from harness.experiment.layout_text import write_layout
from harness.experiment.model import LayerKind, has_experts


def balanced_layout(spec: ExperimentSpec) -> str | None:
    """Return a layout of the request's stages; None where megatron-core splits evenly, or no layout is legal.

    The sum of a rank's chunks decides, then its longest chunk. The loss, with all MTP layers, ends the last chunk.
    """
    model, p = spec.model, spec.parallelism
    pp, num_chunks = p.pipeline_model_parallel_size, p.num_virtual_stages
    of_ends = model.mtp_num_layers and p.pipeline_model_parallel_layout
    if pp == 1 or pp * num_chunks > model.num_layers + 1 or not (of_ends or model.num_layers % (pp * num_chunks)):
        return None
    items, ranks = _times(spec), []
    for size in _split(items, pp, num_chunks)[2]:
        ranks.append(_split(items[:size], num_chunks, 1)[2])
        items = items[size:]
    stages = ["t" * rank[chunk] for chunk in range(num_chunks) for rank in ranks]
    last = "m" * (model.mtp_num_layers or 0) + "L"
    return write_layout([f"E{stages[0]}", *stages[1:-1], stages[-1][1:] + last])


def _times(spec: ExperimentSpec) -> tuple[int, ...]:
    """Return the times of the decoder layers, and of all MTP layers with the loss, in percent of the longest layer's.

    Dense layers count as much as those with experts: they are the first, whose ranks hold the most micro-batches. FLOPs
    take as long as at the GPU's peaks; tokens go to experts and back over its links.
    """
    peaks, kinds = spec.gpu_type.peak_flops, spec.model.layer_kinds
    most = max(peaks.values(), default=1.0)  # a CPU has no peaks
    linear, plain = (peaks.get(key, most) for key in (spec.precision.peak, "bf16"))

    def seconds(kind: LayerKind) -> float:
        flops, moe, ep = layer_flops(spec, kind), spec.model.moe, spec.parallelism.expert_model_parallel_size
        attention = flops.core_attn + flops.delta_rule
        computing = FORWARD_AND_BACKWARD * ((flops.total - attention) / linear + attention / plain)
        if moe is None or not has_experts(kind) or spec.gpu_type.links is None:
            return computing
        sent_bytes = 2 * spec.tokens_per_step * moe.moe_router_topk * spec.model.hidden_size * (1 - 1 / ep)
        sending = 4 * sent_bytes / group_bandwidth(spec, "ep")
        return max(computing, sending) if spec.kernels.overlap_moe_expert_parallel_comm else computing + sending

    layer_s, (in_mtp, logits) = max(map(seconds, {*kinds})), end_flops(spec)
    end = FORWARD_AND_BACKWARD * (in_mtp / linear + logits / plain) + (spec.model.mtp_num_layers or 0) * layer_s
    return *([100] * len(kinds)), round(100 * end / layer_s)


@lru_cache(100_000)
def _split(items: tuple[int, ...], parts: int, least: int) -> tuple[int, int, tuple[int, ...]]:
    """Return the longest part of the best split of ``items`` in a row, the sum of the squares, and each part's length.

    Of splits with equal longest parts the more even one is better, then the one with short first parts, whose ranks
    hold the most micro-batches. ``least``: items of a part.
    """
    totals, found = [*accumulate(items)], list[tuple[int, int, tuple[int, ...]]]()
    if parts == 1:
        return totals[-1], totals[-1] ** 2, (len(items),)
    sizes = range(least, len(items) - least * (parts - 1) + 1)
    for size in sorted(sizes, key=lambda size: abs(totals[size - 1] * parts - totals[-1])):
        own, rest = totals[size - 1], totals[-1] - totals[size - 1]
        if found and max(own, rest / (parts - 1)) > found[0][0]:
            continue
        longest, squares, lengths = _split(items[size:], parts - 1, least)
        found = [min([*found, (max(own, longest), own**2 + squares, (size, *lengths))])]
    return found[0]
