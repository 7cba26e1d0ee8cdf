"""Model FLOPs of one optimizer step, and the FLOPs that recompute executes again.

The model formula is the one of Megatron-Bridge (`training/utils/flop_utils.py`) and Megatron-LM
(`training.py: num_floating_point_operations`): matrix multiplications only, causal attention at half, padded
vocabulary, backward twice the forward, recompute not counted. A fine-tune with adapters is counted like full training,
as both do, although frozen weights need no weight gradients.
"""

from collections import Counter
from dataclasses import dataclass

from harness.experiment.effective import EffectiveRecompute, planned_layers
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.layout import chunks
from harness.experiment.model import LayerKind, ModelSpec, has_experts
from harness.experiment.modules import MODULES
from harness.experiment.recompute import FullRecompute
from harness.experiment.recompute_plan import FULL, PlannedRecompute

FORMULA_VERSION = "model-flops-1"

_FLOPS_PER_MULTIPLY_ADD = 2
FORWARD_AND_BACKWARD = 3


@dataclass(frozen=True)
class LayerFlops:
    """Forward FLOPs of one transformer layer over all tokens of one step.

    ``projections`` are the linear layers around attention and contain ``mla_up_proj``; ``delta_rule`` is the
    convolution and the recurrence of a gated delta net, which has no ``core_attn``; ``mlp`` is the dense block,
    ``experts`` the routed and ``shared_experts`` the shared part of an MoE block. Router, norms, softmax and activation
    functions count as nothing, as in the model formula.
    """

    projections: int
    mla_up_proj: int
    core_attn: int
    delta_rule: int
    mlp: int
    experts: int
    shared_experts: int

    @property
    def total(self) -> int:
        return self.projections + self.core_attn + self.delta_rule + self.mlp + self.experts + self.shared_experts

    def of_module(self, module: str) -> int:
        """FLOPs that recomputing ``module`` executes again in one layer; 0 for norms and activation functions."""
        return sum(getattr(self, part) for part in MODULES[module].flops)


def layer_flops(spec: ExperimentSpec, kind: LayerKind) -> LayerFlops:
    """Return the forward FLOPs of one layer over the global batch."""
    model = spec.model
    per_token = _FLOPS_PER_MULTIPLY_ADD * spec.tokens_per_step
    per_weight = per_token * model.hidden_size * (3 if model.gated_linear_unit else 2)
    projections, up_projections, channels, delta_rule = _attention(model, kind)
    moe = model.moe if has_experts(kind) else None
    return LayerFlops(
        projections=per_token * projections,
        mla_up_proj=per_token * up_projections,
        core_attn=spec.batch.global_batch_size * _visible_pairs(spec, kind) * channels,
        delta_rule=per_token * delta_rule,
        mlp=0 if moe else per_weight * model.ffn_hidden_size,
        experts=per_weight * moe.moe_router_topk * moe.moe_ffn_hidden_size if moe else 0,
        shared_experts=per_weight * (moe.moe_shared_expert_intermediate_size or 0) if moe else 0,
    )


def _visible_pairs(spec: ExperimentSpec, kind: LayerKind) -> int:
    """Return twice the pairs of a query and a key that it sees, in one sequence.

    Scores and context each cost one multiply-add per pair and channel. The causal mask halves the square; inside a
    window of w tokens the formula counts its edge, too: 2 w s - w (w - 1).
    """
    length = spec.batch.seq_length
    if kind.startswith("window") and spec.model.window_size:
        width = sum(spec.model.window_size) + 1
        if 0 < width < length and min(spec.model.window_size) >= 0:
            return 2 * width * length - width * (width - 1)
    return length**2


def end_flops(spec: ExperimentSpec) -> tuple[int, int]:
    """Return the forward FLOPs of MTP layers beside their transformer layers, and of all logits."""
    model, num_mtp = spec.model, spec.model.mtp_num_layers or 0
    per_token = _FLOPS_PER_MULTIPLY_ADD * spec.tokens_per_step * model.hidden_size
    vocab_size = model.padded_vocab_size(spec.parallelism.tensor_model_parallel_size)
    return num_mtp * per_token * (3 + 2 * model.hidden_size), (num_mtp + 1) * per_token * vocab_size


def model_flops_per_step(spec: ExperimentSpec) -> int:
    """Forward and backward FLOPs of one optimizer step over all GPUs, under :data:`FORMULA_VERSION`."""
    return FORWARD_AND_BACKWARD * (sum(count * layer.total for layer, count in _layers(spec)) + sum(end_flops(spec)))


def recompute_flops_per_step(spec: ExperimentSpec, effective: EffectiveRecompute) -> int:
    """Forward FLOPs executed again in one optimizer step, over all GPUs; nested modules add up, as they run."""
    if isinstance(spec.recompute, FullRecompute):
        return _full_recompute_flops(spec, spec.recompute, effective)
    if isinstance(spec.recompute, PlannedRecompute):
        total = 0
        for (kind, setting), count in Counter(planned_layers(spec, spec.recompute)).items():
            layer, modules = layer_flops(spec, kind), [name for name in setting.split(",") if name in effective.modules]
            total += count * (layer.total if setting == FULL else sum(map(layer.of_module, modules)))
        return total
    return sum(count * layer.of_module(module) for layer, count in _layers(spec) for module in effective.modules)


def achieved_tflops(flops: int, seconds: float, num_gpus: int) -> float:
    """TFLOP/s of each GPU."""
    return flops / (seconds * num_gpus * 1e12)


def utilization(flops: int, seconds: float, num_gpus: int, peak_flops: float) -> float:
    """Share of the dense peak: MFU from model FLOPs; HFU from model and recompute FLOPs together."""
    return flops / (seconds * num_gpus * peak_flops)


def _layers(spec: ExperimentSpec) -> list[tuple[LayerFlops, int]]:
    """Return the layers of each kind and their number. Those inside MTP layers are like the last decoder layer."""
    kinds = spec.model.layer_kinds
    counts = Counter(kinds + kinds[-1:] * (spec.model.mtp_num_layers or 0))
    return [(layer_flops(spec, kind), count) for kind, count in counts.items()]


def _attention(model: ModelSpec, kind: LayerKind) -> tuple[int, int, int, int]:
    """Multiply-adds per token: of projections, of their MLA up-projections, attention channels, of the delta rule."""
    net = model.linear_attention
    if net is None or not kind.startswith("delta"):
        return (*(_mla(model) if model.mla else _grouped_query(model)), 0)
    projections = model.hidden_size * (net.projected_channels + net.value_channels)
    convolution = net.linear_conv_kernel_dim * (2 * net.key_channels + net.value_channels)
    return projections, 0, 0, convolution + 4 * net.value_channels * net.linear_value_head_dim


def _grouped_query(model: ModelSpec) -> tuple[int, int, int]:
    """Multiply-adds per token of the projections, of MLA up-projections (none), and attention channels."""
    query = model.head_dim * model.num_attention_heads
    gate = query if model.attention_output_gate else 0
    key_value = 2 * model.head_dim * model.query_groups
    return model.hidden_size * (query + gate + key_value) + query * model.hidden_size, 0, 2 * query


def _mla(model: ModelSpec) -> tuple[int, int, int]:
    """As :func:`_grouped_query`, for multi-latent attention; each latent's norm counts one per channel."""
    mla, heads, hidden = model.mla, model.num_attention_heads, model.hidden_size
    assert mla is not None
    query_dim = mla.qk_head_dim + mla.qk_pos_emb_head_dim
    query_in = mla.q_lora_rank or hidden
    query_up = query_in * heads * query_dim
    query_down = mla.q_lora_rank * (hidden + 1) if mla.q_lora_rank else 0
    key_value_up = mla.kv_lora_rank * heads * (mla.qk_head_dim + mla.v_head_dim)
    key_value_down = mla.kv_lora_rank * (hidden + 1) + hidden * mla.qk_pos_emb_head_dim
    output = heads * mla.v_head_dim * hidden
    up = query_up + key_value_up
    return up + query_down + key_value_down + output, up, heads * (query_dim + mla.v_head_dim)


def _full_recompute_flops(spec: ExperimentSpec, policy: FullRecompute, effective: EffectiveRecompute) -> int:
    """Whole layers: all of them (uniform), or the first ``num_layers`` of every chunk (block, never MTP layers)."""
    if not effective.full_layers:
        return 0
    if policy.method == "uniform":
        projection = _FLOPS_PER_MULTIPLY_ADD * spec.tokens_per_step * 2 * spec.model.hidden_size**2
        return (
            sum(count * layer.total for layer, count in _layers(spec)) + (spec.model.mtp_num_layers or 0) * projection
        )
    kinds, stages = spec.model.layer_kinds, chunks(spec.model, spec.parallelism)
    again = Counter(kinds[i] for stage in stages for chunk in stage for i in chunk.layers[: policy.num_layers])
    return sum(count * layer_flops(spec, kind).total for kind, count in again.items())
