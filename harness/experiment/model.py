"""The model and its parallel sizes."""

from collections.abc import Callable
from functools import cache
from typing import Annotated, Literal

from annotated_types import Ge, Le
from pydantic import Field, model_validator

from harness.experiment.frozen import Frozen

# Not Field(ge=...): before 2.10 pydantic keeps the default of one field in a Field that others share.
MOST = {
    "gpus": 2**20, "layers": 10_000, "experts": 100_000, "width": 10**7, "tokens": 10**8, "samples": 10**6,
    "steps": 10**7,
    "repeats": 10_000, "count": 2**40,
}  # fmt: skip
"""The upper bound of every size, far above any job: one digit too many must not take all memory of the machine."""
Count = Annotated[int, Ge(1), Le(MOST["count"])]
Size = Annotated[int, Ge(0), Le(MOST["count"])]
Gpus = Annotated[int, Ge(1), Le(MOST["gpus"])]
Layers = Annotated[int, Ge(1), Le(MOST["layers"])]
Experts = Annotated[int, Ge(1), Le(MOST["experts"])]
Width = Annotated[int, Ge(1), Le(MOST["width"])]
Repeats = Annotated[int, Ge(1), Le(MOST["repeats"])]
Samples = Annotated[int, Ge(1), Le(MOST["samples"])]
Window = Annotated[int, Ge(-1), Le(MOST["tokens"])]


def repeats_problem(num_repeats: int) -> str:
    """Say why nothing can be repeated so often; empty if it can."""
    most = MOST["repeats"]
    return "" if 1 <= num_repeats <= most else f"--repeats {num_repeats} must be from 1 to {most:,}"


LayerKind = Literal["dense", "moe", "nope_dense", "nope_moe", "window_dense", "window_moe", "delta_dense", "delta_moe"]
"""Kinds of decoder layers: attention (full, no rotary embedding, sliding window, gated delta net), experts or none."""
_Pattern = tuple[int, ...]  # a 0 or 1 for each layer
_KINDS: dict[str, tuple[LayerKind, LayerKind]] = {
    "full": ("dense", "moe"), "nope": ("nope_dense", "nope_moe"), "window": ("window_dense", "window_moe"),
    "delta": ("delta_dense", "delta_moe"),
}  # fmt: skip


def has_experts(kind: LayerKind) -> bool:
    """Return whether a kind of layer has experts."""
    return kind.endswith("moe")


class MoeModel(Frozen):
    """Mixture-of-experts part (megatron-core's names). ``moe_layer_freq``: every n-th layer, or one 0/1 per layer."""

    num_moe_experts: Experts
    moe_router_topk: Experts
    moe_ffn_hidden_size: Width
    moe_layer_freq: Count | tuple[Literal[0, 1], ...] = 1
    moe_shared_expert_intermediate_size: Width | None = None
    moe_shared_expert_gate: bool = False
    moe_router_load_balancing_type: Literal["aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"] = (
        "aux_loss"
    )
    moe_aux_loss_coeff: float = Field(default=0.0, ge=0)
    moe_router_pre_softmax: bool = False
    moe_router_score_function: Literal["softmax", "sigmoid"] = "softmax"
    moe_router_num_groups: Count | None = None
    moe_router_group_topk: Count | None = None
    moe_router_topk_scaling_factor: float | None = None
    moe_router_enable_expert_bias: bool = False
    moe_router_bias_update_rate: float = 1e-3
    moe_router_dtype: Literal["fp32", "fp64"] | None = None
    moe_router_force_load_balancing: bool = False
    moe_grouped_gemm: bool = True
    moe_apply_probs_on_input: bool = False


class MlaModel(Frozen):
    """Multi-latent attention (`MLATransformerConfig` names). Other attention always has the fused rotary embedding."""

    q_lora_rank: Width | None = None
    kv_lora_rank: Width
    qk_head_dim: Width
    qk_pos_emb_head_dim: Width
    v_head_dim: Width
    rope_type: Literal["rope", "yarn"] = "yarn"
    rotary_scaling_factor: float = 40.0
    original_max_position_embeddings: Count = 4096
    mscale: float = 1.0
    mscale_all_dim: float = 1.0
    apply_rope_fusion: bool = False


class LinearAttentionModel(Frozen):
    """Gated delta net layers (`experimental_attention_variant` gated_delta_net) in place of attention in some layers.

    ``linear_attention_freq``: n keeps attention in every n-th layer, a list has 1 for each gated delta net layer.
    """

    linear_attention_freq: Count | tuple[Literal[0, 1], ...]
    linear_conv_kernel_dim: Width = 4
    linear_key_head_dim: Width = 128
    linear_value_head_dim: Width = 128
    linear_num_key_heads: Width = 16
    linear_num_value_heads: Width = 32

    @property
    def key_channels(self) -> int:
        """Return the channels of all query heads, which are as many as those of all key heads."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_channels(self) -> int:
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def projected_channels(self) -> int:
        """The width of the input projection: queries, keys, values and their gate; per value head beta and alpha."""
        return 2 * self.key_channels + 2 * self.value_channels + 2 * self.linear_num_value_heads


class YarnModel(Frozen):
    """YaRN's rotary embedding of attention without latents (``position_embedding_type`` yarn)."""

    yarn_rotary_scaling_factor: float = Field(default=1.0, gt=0)
    yarn_original_max_position_embeddings: Count = 4096
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    yarn_mscale: float | None = None
    yarn_mscale_all_dim: float | None = None
    yarn_correction_range_round_to_int: bool = True


@cache  # a plan asks for the kinds of the same model thousands of times
def _kinds_of(window: _Pattern, delta: _Pattern, nope: _Pattern, moe: _Pattern) -> tuple[LayerKind, ...]:
    """Return the kind of each layer. A gated delta net has no window and no rotary embedding."""
    layers = zip(window, delta, nope, moe, strict=True)
    return tuple(_KINDS["delta" if d else "window" if w else "nope" if n else "full"][m] for w, d, n, m in layers)


class ModelSpec(Frozen):
    """A GPT model. Sizes are counts of elements; dropouts are probabilities.

    ``window_size``: tokens that a query sees before and after itself, -1 for all. ``window_attn_skip_freq``: n leaves
    the window out of every n-th layer, a list has 1 for each layer with a window; None gives every layer the window.
    ``no_rope_freq``: every n-th layer has no rotary embedding, a list has 1 for each such layer.
    """

    num_layers: Layers
    hidden_size: Width
    ffn_hidden_size: Width
    num_attention_heads: Width
    num_query_groups: Width | None = None
    kv_channels: Width | None = None
    vocab_size: Width
    make_vocab_size_divisible_by: Width = 128
    share_embeddings_and_output_weights: bool = False
    gated_linear_unit: bool = True
    activation_func: Literal["silu", "gelu", "quick_gelu", "squared_relu"] = "silu"
    glu_linear_offset: float = 0.0
    activation_func_clamp_value: Annotated[float | None, Field(gt=0)] = None
    add_bias_linear: bool = False
    add_qkv_bias: bool = False
    normalization: Literal["RMSNorm", "LayerNorm"] = "RMSNorm"
    layernorm_epsilon: float = Field(default=1e-5, gt=0)
    layernorm_zero_centered_gamma: bool = False
    qk_layernorm: bool = False
    qk_l2_norm: bool = False
    attention_output_gate: bool = False
    softmax_type: Literal["vanilla", "off-by-one", "learnable"] = "vanilla"
    window_size: tuple[Window, Window] | None = None
    window_attn_skip_freq: Count | tuple[Literal[0, 1], ...] | None = None
    position_embedding_type: Literal["rope", "yarn", "learned_absolute", "none"] = "rope"
    rotary_base: Count = 10000
    rotary_percent: float = Field(default=1.0, gt=0, le=1)
    no_rope_freq: Count | tuple[Literal[0, 1], ...] | None = None
    rope_scaling_factor: float | None = None
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    hidden_dropout: float = Field(default=0.0, ge=0, lt=1)
    mtp_num_layers: Layers | None = None
    mtp_loss_scaling_factor: float = 0.1
    moe: MoeModel | None = None
    mla: MlaModel | None = None
    yarn: YarnModel | None = None
    linear_attention: LinearAttentionModel | None = None

    @model_validator(mode="after")
    def _layer_pattern_is_complete(self) -> "ModelSpec":
        patterns = {
            "moe_layer_freq": self.moe and self.moe.moe_layer_freq,
            "window_attn_skip_freq": self.window_attn_skip_freq,
            "no_rope_freq": self.no_rope_freq,
            "linear_attention_freq": self.linear_attention and self.linear_attention.linear_attention_freq,
        }
        for name, freq in patterns.items():
            if isinstance(freq, tuple) and len(freq) != self.num_layers:
                raise ValueError(f"{name} has {len(freq)} entries for num_layers {self.num_layers}")
        if (self.yarn is None) == (self.position_embedding_type == "yarn"):
            raise ValueError(
                f"position_embedding_type {self.position_embedding_type} "
                f"{'needs' if self.yarn is None else 'does not use'} the section yarn"
            )
        if self.kv_channels is None and self.mla is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}; "
                "set kv_channels"
            )
        return self

    @model_validator(mode="after")
    def _rope_is_left_out_of_whole_layers(self) -> "ModelSpec":
        if isinstance(self.no_rope_freq, int) and self.num_layers % self.no_rope_freq:
            raise ValueError(f"no_rope_freq {self.no_rope_freq} does not divide num_layers {self.num_layers}")
        if any(map(min, self.window_pattern, self.no_rope_pattern)):
            raise ValueError("no_rope_freq and window_size in one layer: mbr-perf has no such layer")
        return self

    @property
    def head_dim(self) -> int:
        return self.kv_channels or self.hidden_size // self.num_attention_heads

    @property
    def query_groups(self) -> int:
        """Return the number of key/value heads: all attention heads without grouped-query attention."""
        return self.num_query_groups or self.num_attention_heads

    def _pattern(self, freq: int | _Pattern | None, of_layer: Callable[[int, int], bool]) -> _Pattern:
        """Return one 0 or 1 per decoder layer: all 0 for None, and ``of_layer(i, n)`` for every n-th layer."""
        if isinstance(freq, tuple):
            return freq
        return tuple(int(freq is not None and of_layer(i, freq)) for i in range(self.num_layers))

    @property
    def moe_layer_pattern(self) -> _Pattern:
        """Return one 0 (dense) or 1 (MoE) per decoder layer, as megatron-core reads `moe_layer_freq`."""
        return self._pattern(self.moe.moe_layer_freq if self.moe else None, lambda i, n: i % n == 0)

    @property
    def window_pattern(self) -> _Pattern:
        """One 1 (sliding window) or 0 (all tokens) per decoder layer, as megatron-core's `window_attn_skip_freq`."""
        if self.window_size is None or self.window_attn_skip_freq is None:
            return (int(self.window_size is not None),) * self.num_layers
        return self._pattern(self.window_attn_skip_freq, lambda i, n: (i + 1) % n != 0)

    @property
    def no_rope_pattern(self) -> _Pattern:
        """One 1 (no rotary embedding) or 0 per decoder layer, as megatron-core's `no_rope_freq`."""
        return self._pattern(self.no_rope_freq, lambda i, n: (i + 1) % n == 0)

    @property
    def linear_attention_pattern(self) -> _Pattern:
        """One 1 (gated delta net) or 0 (attention) per decoder layer, as megatron-core's `linear_attention_freq`."""
        net = self.linear_attention
        return self._pattern(net.linear_attention_freq if net else None, lambda i, n: (i + 1) % n != 0)

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        return _kinds_of(
            self.window_pattern, self.linear_attention_pattern, self.no_rope_pattern, self.moe_layer_pattern
        )

    def of_kind(self, kind: LayerKind, num_layers: int) -> "ModelSpec":
        """Return the model with ``num_layers`` decoder layers, all of one kind."""

        def pattern(*, has_it: bool) -> tuple[int, ...]:
            return (int(has_it),) * num_layers

        changes: dict[str, object] = {"num_layers": num_layers}
        if self.moe:
            changes["moe"] = self.moe.model_copy(update={"moe_layer_freq": pattern(has_it=has_experts(kind))})
        if self.window_size is not None:
            changes["window_attn_skip_freq"] = pattern(has_it=kind.startswith("window"))
        if self.no_rope_freq is not None:
            changes["no_rope_freq"] = pattern(has_it=kind.startswith("nope"))
        if self.linear_attention:
            freq = pattern(has_it=kind.startswith("delta"))
            changes["linear_attention"] = self.linear_attention.model_copy(update={"linear_attention_freq": freq})
        return self.model_copy(update=changes)

    def padded_vocab_size(self, tensor_model_parallel_size: int) -> int:
        """Return the vocabulary rounded up to a multiple of ``make_vocab_size_divisible_by * TP``."""
        unit = self.make_vocab_size_divisible_by * tensor_model_parallel_size
        return -(-self.vocab_size // unit) * unit


class ParallelismSpec(Frozen):
    """Parallel sizes in megatron-core's names. ``expert_tensor_parallel_size`` None means equal to TP.

    ``cp_comm_type``: keys and values pass from rank to rank (p2p), or each rank takes all tokens of its heads (a2a).
    ``defer_embedding_wgrad_compute`` moves the output layer's weight gradients into the pipeline's flush, at most
    ``wgrad_deferral_limit`` micro-batches of them (0: all). Without ``deallocate_pipeline_outputs`` a stage keeps what
    it sent until the backward pass.
    """

    tensor_model_parallel_size: Gpus = 1
    pipeline_model_parallel_size: Gpus = 1
    virtual_pipeline_model_parallel_size: Layers | None = None
    context_parallel_size: Gpus = 1
    cp_comm_type: Literal["p2p", "a2a"] = "p2p"
    expert_model_parallel_size: Gpus = 1
    expert_tensor_parallel_size: Gpus | None = None
    sequence_parallel: bool = False
    pipeline_model_parallel_layout: str | None = None
    account_for_embedding_in_pipeline_split: bool = False
    account_for_loss_in_pipeline_split: bool = False
    num_layers_in_first_pipeline_stage: Layers | None = None
    num_layers_in_last_pipeline_stage: Layers | None = None
    microbatch_group_size_per_vp_stage: Count | None = None
    defer_embedding_wgrad_compute: bool = False
    wgrad_deferral_limit: Size = 0
    deallocate_pipeline_outputs: bool = True

    @property
    def model_parallel_size(self) -> int:
        """Return the number of GPUs that hold one copy of the dense model: TP x PP x CP."""
        return self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.context_parallel_size

    @property
    def expert_tensor_size(self) -> int:
        """Return `expert_tensor_parallel_size`, which megatron-core defaults to TP."""
        return self.expert_tensor_parallel_size or self.tensor_model_parallel_size

    @property
    def num_virtual_stages(self) -> int:
        """Return the number of model chunks per pipeline rank (1 without interleaving)."""
        return self.virtual_pipeline_model_parallel_size or 1

    def data_parallel_size(self, num_gpus: int) -> int:
        """Return the number of copies of the dense model on ``num_gpus`` GPUs; 0 when not even one fits."""
        return num_gpus // self.model_parallel_size


class BatchSpec(Frozen):
    """Samples per micro-batch and GPU, samples per step over all GPUs, tokens per sample."""

    micro_batch_size: Samples
    global_batch_size: Samples
    seq_length: Annotated[int, Ge(2), Le(MOST["tokens"])]

    def num_microbatches(self, data_parallel_size: int) -> int:
        """Return the micro-batches of one step on one GPU: GBS / (MBS x DP); 0 where not one model copy fits."""
        if data_parallel_size == 0:
            return 0
        return self.global_batch_size // (self.micro_batch_size * data_parallel_size)
