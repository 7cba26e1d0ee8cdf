"""The time that experts add (busiest rank, host's launches), and the launches that CUDA graphs save any model."""

from dataclasses import replace
from math import sqrt
from statistics import NormalDist
from typing import get_args

from harness.experiment.experiment import ExperimentSpec
from harness.predict.assumptions import imbalance_of
from harness.predict.compose import ChunkCost
from harness.records.trace import Phase

Costs = tuple[tuple[ChunkCost, ...], ...]  # [pp_rank][vp_stage]

# Tokens choose their experts alike: the correlation of two tokens' choices in one layer. It follows from how much more
# than the mean the busiest of 64 experts gets, of which a token takes 6: 0.52 with an auxiliary loss, 0.04 with a bias
# per expert (Wang et al. 2024, arXiv 2408.15664, table 2: models of 3B parameters, a sigmoid gate, loads summed over
# the validation set, so batches may differ more, and a softmax gate is less even). A router that nothing balances
# counts as one with an auxiliary loss.
_ALIKE, _ALIKE_WITH_BIAS = 5.1e-3, 3.0e-5

# Host time in seconds to launch each matrix product of a grouped GEMM after the first. transformer-engine launches them
# in a C++ loop. An estimate: not fitted, not measured.
GROUPED_LAUNCH_S = 8e-6

# Kernels that quantize one expert's tensor with current scaling: absolute maximum, scale, cast. transformer-engine 2.2
# to 2.18 runs them for each expert (split_quantize in transformer_engine/pytorch/csrc/extensions/cast.cpp). Its other
# scalings quantize, or at least allocate, once for all experts.
NUM_QUANTIZE_KERNELS = 3


def pace_of(spec: ExperimentSpec) -> float:
    """The load of the busiest rank over the mean, averaged over layers and micro-batches; 1 where the share is fixed.

    Each of N tokens takes k of E experts. The variance of an expert's load, as a share of the mean squared, is ``(E/k -
    1) (1/N + alike)``: 1/N is for independent choices, ``alike`` is the addition for correlated choices (design effect,
    Kish 1965). The loads of a rank's E/EP experts average out. The highest of EP normal values is at Blom's quantile
    (1958). The memory's bound and the capacity limit the result. Example: Mixtral 8x7B, EP 8, 1.18; DeepSeek-V3 with a
    bias per expert, EP 64, 1.04.
    """
    moe, bound = spec.model.moe, _traced_imbalance(spec)
    if moe is None or bound == 1:
        return 1.0
    size = spec.parallelism.expert_model_parallel_size
    alike = _ALIKE_WITH_BIAS if moe.moe_router_enable_expert_bias else _ALIKE
    variance = (moe.num_moe_experts / moe.moe_router_topk - 1) * (1 / _num_tokens(spec) + alike)
    highest = NormalDist().inv_cdf((size - 0.375) / (size + 0.25))
    return min(bound, 1 + highest * sqrt(variance * size / moe.num_moe_experts))


def _num_tokens(spec: ExperimentSpec) -> float:
    """Return the tokens that the ranks of an expert-parallel group route at once."""
    p, batch = spec.parallelism, spec.batch
    own = batch.micro_batch_size * batch.seq_length / (p.context_parallel_size * p.tensor_model_parallel_size)
    return own * p.expert_model_parallel_size * p.expert_tensor_size


def _traced_imbalance(spec: ExperimentSpec) -> float:
    """The imbalance in uneven traces: the bound of the memory, or the capacity, above which tokens are dropped."""
    capacity = spec.kernels.moe_expert_capacity_factor
    if capacity is not None and spec.kernels.moe_pad_expert_input_to_capacity:
        return 1.0
    return max(1.0, min(imbalance_of(spec), capacity or imbalance_of(spec)))


def at_pace(spec: ExperimentSpec, even: Costs, uneven: Costs) -> Costs:
    """Return the costs of the busiest rank: between ``even`` and ``uneven``, the largest load of the memory's bound."""
    bound = _traced_imbalance(spec)
    share = (pace_of(spec) - 1) / (bound - 1) if bound > 1 else 0.0
    made: dict[tuple[int, int], ChunkCost] = {}  # stages share chunks that are alike

    def between(low: ChunkCost, high: ChunkCost) -> ChunkCost:
        key = id(low), id(high)
        if key not in made:
            copied = round(low.copied + share * (high.copied - low.copied))
            made[key] = replace(low, work=low.work.towards(high.work, share), copied=copied)
        return made[key]

    return tuple(
        tuple(between(low, high) for low, high in zip(stage, busier, strict=True))
        for stage, busier in zip(even, uneven, strict=True)
    )


def additional_products(spec: ExperimentSpec, chunk: ChunkCost) -> dict[Phase, float]:
    """Return the number of additional matrix products per micro-batch, by phase.

    A trace records a grouped GEMM once; on the GPU it is one product per local expert. Forward and recompute have two
    grouped GEMMs in a layer, backward has four. Recompute counts the share of forward GEMM FLOPs that runs again.
    Example: a layer with 8 local experts has 14 additional products forward and 28 backward.
    """
    moe, phases = spec.model.moe, get_args(Phase)
    if moe is None or not moe.moe_grouped_gemm:
        return dict.fromkeys(phases, 0.0)
    flops: dict[Phase, float] = dict.fromkeys(phases, 0.0)
    for op, count in chunk.work:
        flops[op.phase] += count * op.flops * (op.kind == "gemm")
    num_experts = moe.num_moe_experts // spec.parallelism.expert_model_parallel_size
    matrices = 3 if spec.model.gated_linear_unit else 2
    of_one = matrices * spec.model.hidden_size * moe.moe_ffn_hidden_size / spec.parallelism.expert_tensor_size
    further = 2 * (num_experts - 1) * chunk.parameters.expert / of_one / num_experts
    again = flops["recompute"] / flops["forward"] if flops["forward"] else 0.0
    return {"forward": further, "backward": 2 * further, "recompute": further * again}


def expert_launch_s(spec: ExperimentSpec, chunk: ChunkCost, launch_s: float) -> dict[Phase, float]:
    """The additional host time per micro-batch in seconds, by phase: a trace records once what runs once per expert.

    ``launch_s``: host time of one simple operation in seconds. With current scaling (``fp8_cs``) transformer-engine
    also quantizes each expert's tensor separately: two tensors per MoE layer in each phase. Example: 8 local experts,
    fp8_cs, launch_s 35e-6: forward 14 x (8e-6 + 3 x 35e-6) s = 1.6 ms.
    """
    products = additional_products(spec, chunk)
    each = NUM_QUANTIZE_KERNELS * launch_s if spec.compute_dtype == "fp8_cs" else 0.0
    tensors = {"forward": 1.0, "backward": 0.5, "recompute": 1.0}
    return {phase: count * (GROUPED_LAUNCH_S + tensors[phase] * each) for phase, count in products.items()}


# Share of a layer's operations in each part that transformer-engine's graphs capture: of the 22 of a forward pass of
# Llama 3 70B and the 53 of Qwen3 30B-A3B, counted in their traces with megatron-core 0.16.1.
_CAPTURED_DENSE = {"attn": 14 / 22, "mlp": 8 / 22}
_CAPTURED_MOE = {"attn": 13 / 53, "moe": 40 / 53, "moe_router": 30 / 53, "moe_preprocess": 1 / 53}


def captured(spec: ExperimentSpec) -> float:
    """Share of the operations of a pass that CUDA graphs launch without the host."""
    graphs = spec.cuda_graph
    if graphs.impl == "none":
        return 0.0
    parts = _CAPTURED_MOE if spec.model.moe else _CAPTURED_DENSE
    if not graphs.scope or "full_iteration" in (graphs.impl, *graphs.scope):
        return 1.0
    return min(1.0, sum(parts.get(part, 0.0) for part in graphs.scope))
