"""Counts weights and the ranks that share their optimizer states, and what of these lies in host memory."""

from harness.experiment.experiment import ExperimentSpec

HOST_STATE_BYTES = 16
"""Per parameter in host memory: master weight, both moments, and the gradient, all in fp32, whatever their dtypes."""
HOST_BUILD_BYTES = 4
"""Per parameter at the start. megatron-core 0.16.1 first copies whole weights, then its share of them."""

HOST_ADAM_PER_S = 1.24e9
"""Parameters that a thread updates in a second of its own: torch 2.13's fused AdamW on an AMD EPYC that other programs
used too, best of 7 steps (results/benchmarks/host_adam.json). Processors differ."""


def least_parameters(spec: ExperimentSpec) -> tuple[int, int]:
    """Return the weights of dense layers' attention and feed-forward, and of experts, that some rank holds at least."""
    model, p = spec.model, spec.parallelism
    per_weight = model.hidden_size * (3 if model.gated_linear_unit else 2)
    attention = (
        0
        if model.mla or model.linear_attention
        else model.hidden_size * model.head_dim * 2 * (model.num_attention_heads + model.query_groups)
    )
    num_moe = sum(model.moe_layer_pattern)
    dense = (model.num_layers * attention + (model.num_layers - num_moe) * per_weight * model.ffn_hidden_size) // (
        p.tensor_model_parallel_size * p.pipeline_model_parallel_size
    )
    expert = 0
    if model.moe:
        each = per_weight * model.moe.moe_ffn_hidden_size * model.moe.num_moe_experts
        ways = p.pipeline_model_parallel_size * p.expert_model_parallel_size * p.expert_tensor_size
        expert = num_moe * each // ways
    return dense, expert


def shards_of(spec: ExperimentSpec) -> tuple[int, int]:
    """Return over how many ranks the optimizer states of dense layers and of experts are spread."""
    spreads = spec.optimizer.use_distributed_optimizer or spec.optimizer.optimizer == "dist_muon"
    if not (spreads or spec.ddp.use_megatron_fsdp):
        return 1, 1
    p = spec.parallelism
    ranks = p.pipeline_model_parallel_size * p.expert_model_parallel_size * p.expert_tensor_size
    return dense_data_parallel_size(spec), max(1, spec.num_gpus // ranks)


def dense_data_parallel_size(spec: ExperimentSpec) -> int:
    """Return the number of ranks that share dense optimizer state: data-parallel times context-parallel."""
    return max(1, spec.data_parallel_size * spec.parallelism.context_parallel_size)


def on_host(spec: ExperimentSpec) -> float:
    """Return the share of the parameters whose optimizer states are in host memory."""
    o = spec.optimizer
    return o.optimizer_offload_fraction if o.optimizer_cpu_offload else 0.0


def host_state_bytes(spec: ExperimentSpec, dense: float, expert: float) -> int:
    """Return the most bytes of optimizer states in host memory on a node whose ranks hold these parameters each.

    megatron-core 0.16.1 `HybridDeviceOptimizer`. 8 ranks of a dense model with 1e9 parameters on each, data-parallel
    over 64: at the end 16 x 1e9 / 64 bytes each, at the start 4 x (1e9 + 1e9 / 64); 32.5 GB on the node.
    """
    shards = shards_of(spec)
    owned, whole = dense / shards[0] + expert / shards[1], dense + expert
    each = max(HOST_STATE_BYTES * owned, HOST_BUILD_BYTES * (whole + owned))
    return round(on_host(spec) * each * spec.ranks_per_node(spec.num_nodes))
