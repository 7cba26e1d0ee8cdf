"""Computes the published closed formula of Megatron-Bridge for the same request.

`training/utils/theoretical_memory_utils.py` estimate_training_memory: 18 bytes per parameter, or 6 plus 12 shared by the
distributed optimizer; activations of one fixed recompute setting (core attention under sequence parallelism). It reads
neither recompute modules nor precision, and knows no full recompute. A test compares it with recorded outputs.
"""

from harness.experiment.experiment import ExperimentSpec
from harness.predict.ledger import StageMemory

_STATE_BYTES, _UNSHARED_BYTES, _SHARED_BYTES = 18, 6, 12


def formula_bytes(spec: ExperimentSpec, fullest: StageMemory) -> int:
    """Return the peak bytes of the fullest GPU, with the parameter counts of ``fullest``: its own are wrong for MLA."""
    return round(state_bytes(spec, fullest) + activation_bytes(spec))


def state_bytes(spec: ExperimentSpec, fullest: StageMemory) -> float:
    """Return the bytes of weights, gradients and optimizer."""
    p, dense, expert = spec.parallelism, fullest.parameters.dense, fullest.parameters.expert
    if not spec.optimizer.use_distributed_optimizer:
        return _STATE_BYTES * (dense + expert)
    ranks = spec.data_parallel_size * p.context_parallel_size
    experts = p.expert_model_parallel_size * p.expert_tensor_size
    owners = max(1, ranks * p.tensor_model_parallel_size // experts)
    return dense * (_UNSHARED_BYTES + _SHARED_BYTES / ranks) + expert * (_UNSHARED_BYTES + _SHARED_BYTES / owners)


def activation_bytes(spec: ExperimentSpec) -> float:
    """Return the first stage's bytes: it holds PP micro-batches of 1/PP of the layers, so as much as one micro-batch of all layers."""
    m, p, b = spec.model, spec.parallelism, spec.batch
    pp, tokens = p.pipeline_model_parallel_size, b.seq_length * b.micro_batch_size
    ratios = [_ffn_size(spec, is_moe=bool(kind)) / m.hidden_size for kind in m.moe_layer_pattern]
    total = sum(tokens * m.hidden_size * (18 + 4 * ratio) for ratio in ratios)
    total += 8 * tokens * pp + tokens * m.hidden_size * pp
    if (chunks := p.virtual_pipeline_model_parallel_size or 1) > 1:
        total *= 1 + (pp - 1) / (pp * chunks)
    elif pp > 1:
        total *= min(1, spec.num_microbatches / pp)
    if pp == 1:
        vocabulary = m.padded_vocab_size(p.tensor_model_parallel_size)
        total += tokens * m.hidden_size * 4 * (1 + vocabulary / m.hidden_size)
    return total / (p.tensor_model_parallel_size * p.context_parallel_size)


def _ffn_size(spec: ExperimentSpec, *, is_moe: bool) -> int:
    moe = spec.model.moe
    if moe is None or not is_moe:
        return spec.model.ffn_hidden_size
    return moe.moe_router_topk * moe.moe_ffn_hidden_size + (moe.moe_shared_expert_intermediate_size or 0)
