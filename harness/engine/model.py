"""Builds the model, wraps it for data parallelism, and reads back which recompute its layers do."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.enums import ModelType
from megatron.core.fp8_utils import correct_amax_history_if_needed
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_decoder_block_spec,
    get_gpt_decoder_layer_specs,
    get_gpt_mtp_block_spec,
)
from megatron.core.tensor_parallel import layers
from megatron.core.tensor_parallel.layers import set_defaults_if_not_set_tensor_model_parallel_attributes
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.module import Float16Module, MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import L2Norm
from megatron.core.transformer.transformer_config import TransformerConfig

from harness.engine import adapters, gpu_setup
from harness.engine.config import ddp_config, has_weight_gradient_kernel
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.layout import chunks, num_virtual_stages


def _marked(norm: torch.nn.Module, config) -> torch.nn.Module:
    """Mark replicated weights, so that megatron all-reduces their gradients over the TP ranks."""
    for parameter in norm.parameters():
        parameter.sequence_parallel = config.sequence_parallel
    return norm


class Norm:
    """RMSNorm or LayerNorm by `config.normalization`; megatron's WrappedTorchNorm refuses sequence parallelism."""

    def __new__(cls, config, hidden_size: int, eps: float = 1e-5, **_unused) -> torch.nn.Module:
        """Called by megatron as a class: Norm(config=..., hidden_size=..., eps=...)."""
        if config.layernorm_zero_centered_gamma:
            return _marked(_ZeroCenteredNorm(config.normalization, hidden_size, eps, config.params_dtype), config)
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        return _marked(kind(hidden_size, eps=eps, dtype=config.params_dtype), config)


class _ZeroCenteredNorm(torch.nn.Module):
    """A norm whose scale is stored as gamma - 1 (`layernorm_zero_centered_gamma`)."""

    def __init__(self, normalization: str, hidden_size: int, eps: float, dtype: torch.dtype):
        super().__init__()
        self.eps, self.shape = eps, (hidden_size,)
        self.weight = torch.nn.Parameter(torch.zeros(hidden_size, dtype=dtype))
        self.bias = torch.nn.Parameter(torch.zeros(hidden_size, dtype=dtype)) if normalization == "LayerNorm" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension of ``x``."""
        if self.bias is None:
            return torch.nn.functional.rms_norm(x, self.shape, 1 + self.weight, self.eps)
        return torch.nn.functional.layer_norm(x, self.shape, 1 + self.weight, self.bias, self.eps)


class FlashCoreAttention(MegatronModule):
    """Causal attention on torch's scaled_dot_product_attention: no score matrix is saved, as with flash attention.

    Takes q [sq, b, heads, d], k and v [sk, b, groups, d or d_v]; returns [sq, b, heads * d_v].
    """

    def __init__(self, config, attn_mask_type, attention_dropout=None, softmax_scale=None, **_other_megatron_arguments):
        super().__init__(config=config)
        if attn_mask_type != AttnMaskType.causal:
            raise ValueError(f"flash-like attention supports causal masks only, not {attn_mask_type}")
        if config.context_parallel_size > 1:
            raise ValueError("context parallelism needs transformer-engine's attention")
        if config.window_size or config.softmax_type != "vanilla":
            raise ValueError(
                "flash-like attention knows no sliding window and no attention sinks; use unfused attention"
            )
        self.softmax_scale = softmax_scale
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout

    def forward(self, query, key, value, *_mask, **_other_megatron_arguments):
        """Attend; causality implies the mask."""
        groups = query.size(2) // key.size(2)
        if groups > 1:
            key, value = key.repeat_interleave(groups, dim=2), value.repeat_interleave(groups, dim=2)
        context = torch.nn.functional.scaled_dot_product_attention(
            query.permute(1, 2, 0, 3),
            key.permute(1, 2, 0, 3),
            value.permute(1, 2, 0, 3),
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
            scale=self.softmax_scale,
        )
        return context.permute(2, 0, 1, 3).reshape(query.size(0), query.size(1), -1)


class UnfusedCoreAttention(DotProductAttention):
    """megatron's own attention, which saves the score matrix. Also serves MLA, whose k and v have different sizes."""

    def __init__(self, *args, v_channels=None, **kwargs):
        kwargs.pop("k_channels", None)  # the base class takes neither size
        super().__init__(*args, **kwargs)
        if v_channels:
            self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition


def build_chunks(spec: ExperimentSpec, config: TransformerConfig) -> list[torch.nn.Module]:
    """Build one GPTModel per virtual pipeline stage of this rank, on its device, in the parameters' precision."""
    chunks = []
    for vp_stage in range(num_virtual_stages(spec.parallelism)):
        chunk = _chunk(spec, config, vp_stage if num_virtual_stages(spec.parallelism) > 1 else None)
        chunk.model_type = ModelType.encoder_or_decoder
        for parameter in chunk.parameters():
            set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
        if not spec.gpu_type.is_cpu:
            chunk.cuda(torch.cuda.current_device())
        chunks.append(Float16Module(config, chunk) if config.bf16 or config.fp16 else chunk)
    correct_amax_history_if_needed(chunks)  # the cast above must not enter the amax history of delayed scaling
    return chunks


def wrap_ddp(
    spec: ExperimentSpec, config: TransformerConfig, chunks: list[torch.nn.Module]
) -> list[DistributedDataParallel]:
    """Wrap the chunks in megatron's DistributedDataParallel (or its FSDP)."""
    wrapper = DistributedDataParallel
    if spec.ddp.use_megatron_fsdp:
        from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel

        wrapper = FullyShardedDataParallel
    settings = ddp_config(spec)
    with gpu_setup.building_ddp(spec):
        return [
            wrapper(config=config, ddp_config=settings, module=chunk, disable_bucketing=i > 0)
            for i, chunk in enumerate(chunks)
        ]


def _chunk(spec: ExperimentSpec, config: TransformerConfig, vp_stage: int | None) -> GPTModel:
    return gpt_model(
        spec,
        config,
        vp_stage,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
    )


def gpt_model(
    spec: ExperimentSpec, config: TransformerConfig, vp_stage: int | None, *, pre_process: bool, post_process: bool
) -> GPTModel:
    """Build the GPTModel of one stage: the embedding if ``pre_process``, output layer and loss if ``post_process``."""
    m = spec.model
    block, mtp = _block_specs(spec, config, vp_stage)
    lacks_apex = config.gradient_accumulation_fusion and not has_weight_gradient_kernel()
    with _apex_passed_over() if lacks_apex else nullcontext():
        model = GPTModel(
            config,
            block,
            vocab_size=m.padded_vocab_size(spec.parallelism.tensor_model_parallel_size),
            max_sequence_length=spec.batch.seq_length,
            pre_process=pre_process,
            post_process=post_process,
            share_embeddings_and_output_weights=m.share_embeddings_and_output_weights,
            position_embedding_type=m.position_embedding_type,
            rotary_percent=m.rotary_percent,
            rotary_base=m.rotary_base,
            rope_scaling=m.rope_scaling_factor is not None,
            rope_scaling_factor=m.rope_scaling_factor or 8.0,
            mtp_block_spec=mtp,
            vp_stage=vp_stage,
        )
        if spec.peft:
            adapters.attach(model, spec.peft)
    if lacks_apex:
        _unfuse_own_layers(model)
    return model


@contextmanager
def _apex_passed_over() -> Iterator[None]:
    """Let megatron-core build its own layers with gradient accumulation fusion on, as if Apex were installed.

    Without Apex its output layer refuses the setting for the whole model, which transformer-engine's layers can have.
    """
    layers._grad_accum_fusion_available = True
    try:
        yield
    finally:
        layers._grad_accum_fusion_available = False


def _unfuse_own_layers(model: torch.nn.Module) -> None:
    """Let megatron-core's own linear layers allocate weight gradients; with transformer-engine: the output layer."""
    for module in model.modules():
        if isinstance(module, layers.ColumnParallelLinear | layers.RowParallelLinear):
            module.gradient_accumulation_fusion = False


def _block_specs(spec: ExperimentSpec, config: TransformerConfig, vp_stage: int | None):
    te = spec.kernels.transformer_impl == "transformer_engine"
    kwargs = {"use_transformer_engine": te, "normalization": config.normalization, "qk_l2_norm": config.qk_l2_norm}
    if te and spec.model.linear_attention:
        from megatron.core.models.gpt import experimental_attention_variant_module_specs as variants

        block = variants.get_transformer_block_with_experimental_attention_variant_spec(config, vp_stage=vp_stage)
    else:
        block = get_gpt_decoder_block_spec(_with_standard_attention(config), **kwargs, vp_stage=vp_stage)
    mtp = None
    if spec.model.mtp_num_layers:
        last_layer = get_gpt_decoder_layer_specs(_with_standard_attention(config), **kwargs)[-1]
        mtp = get_gpt_mtp_block_spec(config, last_layer, use_transformer_engine=te, vp_stage=vp_stage)
    if not te:
        localize = partial(_use_local_parts, attention=_local_attention(spec))
        for layer in block.layer_specs:
            localize(layer)
        if spec.model.linear_attention:
            block.layer_specs = _with_delta_nets(spec, block.layer_specs, vp_stage)
        block.layer_norm = Norm
        for layer in mtp.layer_specs if mtp else ():
            parts = layer.submodules
            parts.enorm = parts.hnorm = parts.layer_norm = Norm
            localize(getattr(parts, "mtp_model_layer", None) or parts.transformer_layer)
    return block, mtp


def _with_standard_attention(config: TransformerConfig) -> TransformerConfig:
    """Copy a configuration without gated delta nets, for whose layers megatron-core 0.19 makes no standard spec."""
    standard = copy.copy(config)
    standard.experimental_attention_variant = None
    return standard


def _local_attention(spec: ExperimentSpec) -> type[torch.nn.Module]:
    return UnfusedCoreAttention if spec.kernels.attention_backend == "unfused" else FlashCoreAttention


def _use_local_parts(layer, attention: type[torch.nn.Module]) -> None:
    """Replace norms and attention of a local layer spec by versions that work on every machine."""
    parts = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = Norm
    attention_parts = parts.self_attention.submodules
    attention_parts.core_attention = attention
    for name in ("q_layernorm", "k_layernorm", "kv_layernorm"):
        if getattr(attention_parts, name, IdentityOp) not in (IdentityOp, L2Norm, None):
            setattr(attention_parts, name, Norm)


def _with_delta_nets(spec: ExperimentSpec, layer_specs: list[ModuleSpec], vp_stage: int | None) -> list[ModuleSpec]:
    """Replace the attention of gated delta net layers; megatron-core has the spec for transformer-engine only."""
    from megatron.core.ssm.gated_delta_net import GatedDeltaNet, GatedDeltaNetSubmodules

    stage = chunks(spec.model, spec.parallelism)[parallel_state.get_pipeline_model_parallel_rank()]
    pattern = spec.model.linear_attention_pattern
    parts = GatedDeltaNetSubmodules(
        in_proj=layers.ColumnParallelLinear, out_norm=Norm, out_proj=layers.RowParallelLinear
    )
    delta_net = ModuleSpec(module=GatedDeltaNet, submodules=parts)
    specs = [copy.copy(layer) for layer in layer_specs]
    for layer, number in zip(specs, stage[vp_stage or 0].layers, strict=True):
        if pattern[number]:
            layer.submodules = copy.copy(layer.submodules)
            layer.submodules.self_attention = delta_net
    return specs
