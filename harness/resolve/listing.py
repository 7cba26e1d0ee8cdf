"""Counts the parameters of a recipe's model, and checks its points by the rules."""

from collections import Counter

from harness.experiment.model import LinearAttentionModel, ModelSpec, MoeModel, has_experts
from harness.experiment.rules.check import check
from harness.experiment.rules.rule import Finding
from harness.experiment.software import ASSUMED_MEGATRON_CORE, ASSUMED_TRANSFORMER_ENGINE, Software
from harness.resolve.recipe import OperatingPoint, Recipe, build_spec
from harness.resolve.resolve import resolve_point


def parameter_count(model: ModelSpec) -> int:
    """Count the parameters without learned positions and multi-token prediction.

    >>> round(parameter_count(ModelSpec(num_layers=32, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32,
    ...     num_query_groups=8, vocab_size=128256)) / 1e6)
    8030
    """
    embeddings = 1 if model.share_embeddings_and_output_weights else 2
    total = embeddings * model.vocab_size * model.hidden_size + _norm(model)
    for kind, number in Counter(model.layer_kinds).items():
        net = model.linear_attention if kind.startswith("delta") else None
        attention = _delta_net(model, net) if net else _attention(model)
        moe = model.moe if has_experts(kind) else None
        feed_forward = _moe(model, moe) if moe else _mlp(model, model.ffn_hidden_size)
        total += number * (attention + feed_forward + 2 * _norm(model))
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
    context, keys_values = heads * model.head_dim, 2 * model.query_groups * model.head_dim
    projected = context * (2 if model.attention_output_gate else 1) + keys_values
    biases = projected if model.add_bias_linear or model.add_qkv_bias else 0
    biases += hidden if model.add_bias_linear else 0
    sinks = heads if model.softmax_type == "learnable" else 0
    norms = 2 * model.head_dim if model.qk_layernorm else 0
    return hidden * (projected + context) + biases + sinks + norms


def _delta_net(model: ModelSpec, net: LinearAttentionModel) -> int:
    projections = model.hidden_size * (net.projected_channels + net.value_channels)
    convolution = net.linear_conv_kernel_dim * (2 * net.key_channels + net.value_channels)
    of_heads = 2 * net.linear_num_value_heads + net.linear_value_head_dim  # time steps, decays, the output's norm
    return projections + convolution + of_heads


def _mlp(model: ModelSpec, ffn_hidden_size: int) -> int:
    width = ffn_hidden_size * (2 if model.gated_linear_unit else 1)
    biases = width + model.hidden_size if model.add_bias_linear else 0
    return model.hidden_size * (width + ffn_hidden_size) + biases


def _moe(model: ModelSpec, moe: MoeModel) -> int:
    shared = moe.moe_shared_expert_intermediate_size
    gate = model.hidden_size if moe.moe_shared_expert_gate else 0
    return (
        (model.hidden_size + (1 if model.add_bias_linear else 0)) * moe.num_moe_experts
        + moe.num_moe_experts * _mlp(model, moe.moe_ffn_hidden_size)
        + (_mlp(model, shared) + gate if shared else 0)
    )


def full_model(recipe: Recipe) -> ModelSpec:
    """Return the model at full size: that of the first point on a GPU, else of the first point."""
    point = next((p for p in recipe.points if p.key.gpu != "cpu"), recipe.points[0])
    return build_spec(point.layer, point.place).model


def refusals(recipe: Recipe, point: OperatingPoint) -> list[Finding]:
    """Return the errors of the rule table at one point; none for a point that its file marks as inconsistent.

    The rules are those of megatron-core 0.16.1: another release may accept the point.
    """
    if point.key.inconsistent:
        return []
    software = Software(megatron_core=ASSUMED_MEGATRON_CORE, transformer_engine=ASSUMED_TRANSFORMER_ENGINE)
    return [finding for finding in check(resolve_point(recipe, point), software) if finding.blocks]
