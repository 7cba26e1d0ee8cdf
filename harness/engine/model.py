"""Builds the model chunks of this rank: layer spec, GPTModel, mixed precision, DDP."""

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
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

from harness.engine import streams
from harness.engine.config import ddp_config, has_weight_gradient_kernel
from harness.engine.local_layers import FlashCoreAttention, Norm, UnfusedCoreAttention
from harness.spec.experiment import ExperimentSpec
from harness.spec.layout import num_virtual_stages


def build_chunks(spec: ExperimentSpec, config: TransformerConfig) -> list[torch.nn.Module]:
    """One GPTModel per virtual pipeline stage of this rank, on its device, in the parameters' precision."""
    chunks = []
    for vp_stage in range(num_virtual_stages(spec.parallelism)):
        chunk = _chunk(spec, config, vp_stage if num_virtual_stages(spec.parallelism) > 1 else None)
        chunk.model_type = ModelType.encoder_or_decoder
        for parameter in chunk.parameters():
            set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
        if not spec.gpu_type.is_cpu:
            chunk.cuda(torch.cuda.current_device())
        chunks.append(Float16Module(config, chunk) if config.bf16 or config.fp16 else chunk)
    correct_amax_history_if_needed(chunks)  # the cast above must not count in the amax history of delayed scaling
    return chunks


def wrap_ddp(
    spec: ExperimentSpec, config: TransformerConfig, chunks: list[torch.nn.Module]
) -> list[DistributedDataParallel]:
    """The chunks under megatron's DistributedDataParallel (or its FSDP)."""
    wrapper = DistributedDataParallel
    if spec.ddp.use_megatron_fsdp:
        from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel

        wrapper = FullyShardedDataParallel
    settings = ddp_config(spec)
    with streams.building_ddp(spec):
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
    """The GPTModel of one stage: with the embedding where ``pre_process``, with output layer and loss where ``post_process``."""
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
    if lacks_apex:
        _unfuse_own_layers(model)
    return model


@contextmanager
def _apex_passed_over() -> Iterator[None]:
    """Let megatron-core build its own layers with gradient accumulation fusion on, as if Apex were installed.

    Without Apex its output layer refuses the setting for the whole model. transformer-engine's layers need no Apex and
    would lose the fusion.
    """
    layers._grad_accum_fusion_available = True
    try:
        yield
    finally:
        layers._grad_accum_fusion_available = False


def _unfuse_own_layers(model: torch.nn.Module) -> None:
    """Let megatron-core's own linear layers allocate weight gradients; in a transformer-engine model: the output layer."""
    for module in model.modules():
        if isinstance(module, layers.ColumnParallelLinear | layers.RowParallelLinear):
            module.gradient_accumulation_fusion = False


def _block_specs(spec: ExperimentSpec, config: TransformerConfig, vp_stage: int | None):
    te = spec.kernels.transformer_impl == "transformer_engine"
    kwargs = {"use_transformer_engine": te, "normalization": config.normalization}
    block = get_gpt_decoder_block_spec(config, **kwargs, vp_stage=vp_stage)
    mtp = None
    if spec.model.mtp_num_layers:
        last_layer = get_gpt_decoder_layer_specs(config, **kwargs)[-1]
        mtp = get_gpt_mtp_block_spec(config, last_layer, use_transformer_engine=te, vp_stage=vp_stage)
    if not te:
        localize = partial(_use_local_parts, attention=_local_attention(spec))
        for layer in block.layer_specs:
            localize(layer)
        block.layer_norm = Norm
        for layer in mtp.layer_specs if mtp else ():
            parts = layer.submodules
            parts.enorm = parts.hnorm = parts.layer_norm = Norm
            localize(getattr(parts, "mtp_model_layer", None) or parts.transformer_layer)
    return block, mtp


def _local_attention(spec: ExperimentSpec) -> type[torch.nn.Module]:
    return UnfusedCoreAttention if spec.kernels.attention_backend == "unfused" else FlashCoreAttention


def _use_local_parts(layer, attention: type[torch.nn.Module]) -> None:
    """Replace norms and attention of one local layer spec by those that work on every machine."""
    parts = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = Norm
    attention_parts = parts.self_attention.submodules
    attention_parts.core_attention = attention
    for name in ("q_layernorm", "k_layernorm", "kv_layernorm"):
        if getattr(attention_parts, name, IdentityOp) not in (IdentityOp, None):
            setattr(attention_parts, name, Norm)
