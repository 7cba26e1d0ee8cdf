"""How many parameters a model has."""

from harness.spec.model import ModelSpec, MoeModel


def parameter_count(model: ModelSpec) -> int:
    """Parameters of all layers, norms, embedding and output; without learned positions and multi-token prediction.

    >>> round(parameter_count(ModelSpec(num_layers=32, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32,
    ...     num_query_groups=8, vocab_size=128256)) / 1e6)
    8030
    """
    embeddings = 1 if model.share_embeddings_and_output_weights else 2
    total = embeddings * model.vocab_size * model.hidden_size + _norm(model)
    for is_moe in model.moe_layer_pattern:
        feed_forward = _moe(model, model.moe) if is_moe and model.moe else _mlp(model, model.ffn_hidden_size)
        total += _attention(model) + feed_forward + 2 * _norm(model)
    return total


def _norm(model: ModelSpec) -> int:
    return model.hidden_size * (2 if model.normalization == "LayerNorm" else 1)


def _attention(model: ModelSpec) -> int:
    hidden, heads = model.hidden_size, model.num_attention_heads
    if model.mla:
        mla = model.mla
        queries = heads * (mla.qk_head_dim + mla.qk_pos_emb_head_dim)
        keys_values = heads * (mla.qk_head_dim + mla.v_head_dim)
        rank = mla.q_lora_rank
        down_up = hidden * rank + rank + rank * queries if rank else hidden * queries
        compressed = hidden * (mla.kv_lora_rank + mla.qk_pos_emb_head_dim) + mla.kv_lora_rank
        return down_up + compressed + mla.kv_lora_rank * keys_values + heads * mla.v_head_dim * hidden
    queries, keys_values = heads * model.head_dim, 2 * model.query_groups * model.head_dim
    biases = queries + keys_values + hidden if model.add_bias_linear else 0
    norms = 2 * model.head_dim if model.qk_layernorm else 0
    return hidden * (2 * queries + keys_values) + biases + norms


def _mlp(model: ModelSpec, ffn_hidden_size: int) -> int:
    width = ffn_hidden_size * (2 if model.gated_linear_unit else 1)
    biases = width + model.hidden_size if model.add_bias_linear else 0
    return model.hidden_size * (width + ffn_hidden_size) + biases


def _moe(model: ModelSpec, moe: MoeModel) -> int:
    shared = moe.moe_shared_expert_intermediate_size
    return (
        model.hidden_size * moe.num_moe_experts
        + moe.num_moe_experts * _mlp(model, moe.moe_ffn_hidden_size)
        + (_mlp(model, shared) if shared else 0)
    )
