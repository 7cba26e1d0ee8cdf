"""Maps an ExperimentSpec to megatron-core configuration objects, for ranks and tracer alike."""

import dataclasses
from importlib.util import find_spec
from typing import Any

import torch
from megatron.core.activations import squared_relu
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.fusions.fused_bias_geglu import quick_gelu
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

from harness.experiment.experiment import CudaGraphSpec, ExperimentSpec
from harness.experiment.layout import num_virtual_stages
from harness.experiment.model import ModelSpec
from harness.experiment.recompute import megatron_fields

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.uint8}
ACTIVATIONS = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu, "quick_gelu": quick_gelu,
               "squared_relu": squared_relu}  # fmt: skip

# Fields that megatron-core renamed: our name -> names in newer releases, tried in order.
RENAMED = {"cuda_graph_scope": ("cuda_graph_modules",), "fp4_param": ("fp4_param_gather",)}
# Fields that only some releases have; without them the request means the same.
OPTIONAL = {"moe_use_legacy_grouped_gemm"}


class UnknownFieldError(RuntimeError):
    """The installed megatron-core has no field for a requested setting."""


def fitted(config_class: type, fields: dict[str, Any]) -> dict[str, Any]:
    """Return ``fields`` under the names that the installed ``config_class`` knows. UnknownFieldError."""
    known = {f.name for f in dataclasses.fields(config_class)}
    out, missing = {}, []
    for name, value in fields.items():
        candidates = [n for n in (name, *RENAMED.get(name, ())) if n in known]
        if RENAMED.get(name) and candidates[-1:]:
            out[candidates[-1]] = value  # the newest name: the old one is a deprecated alias
        elif candidates:
            out[name] = value
        elif name not in OPTIONAL:
            missing.append(name)
    if missing:
        raise UnknownFieldError(f"this megatron-core's {config_class.__name__} has no {', '.join(missing)}")
    return out


def transformer_config(spec: ExperimentSpec) -> TransformerConfig:
    """Build the `TransformerConfig` or `MLATransformerConfig` of ``spec``, whose ``transformer_impl`` is settled."""
    config_class = MLATransformerConfig if spec.model.mla else TransformerConfig
    fields = {
        **_architecture(spec),
        **_parallel(spec),
        **_kernels(spec),
        **_recompute(spec),
        **_precision(spec),
        **_cuda_graph(spec.cuda_graph, TransformerConfig),
        **(_moe(spec) if spec.model.moe else {}),
        **(_mla(spec) if spec.model.mla else {}),
        **(_linear_attention(spec) if spec.model.linear_attention else {}),
        **_offload(spec),
    }
    config = config_class(**fitted(config_class, fields))
    for name, value in (spec.model.yarn.model_dump() if spec.model.yarn else {}).items():
        setattr(config, name, value)  # no fields: GPTModel and attention look for them on the object
    return config


# Settings of a model that GPTModel or another function takes, or that are a section of their own.
_NOT_OF_EVERY_MODEL = {
    "vocab_size", "make_vocab_size_divisible_by", "share_embeddings_and_output_weights", "position_embedding_type",
    "rotary_base", "rotary_percent", "rope_scaling_factor", "mtp_num_layers", "mtp_loss_scaling_factor", "moe", "mla",
    "yarn", "linear_attention",
}  # fmt: skip


def _architecture(spec: ExperimentSpec) -> dict[str, Any]:
    m = spec.model
    fields: dict[str, Any] = m.model_dump(exclude=_NOT_OF_EVERY_MODEL) | {
        "num_query_groups": None if m.mla else m.query_groups,
        "kv_channels": None if m.mla else m.head_dim,
        "activation_func": ACTIVATIONS[m.activation_func],
        "no_rope_freq": _pattern(m.no_rope_freq),
        "window_attn_skip_freq": _pattern(m.window_attn_skip_freq),
        "use_cpu_initialization": spec.gpu_type.is_cpu,
    }
    if m.mtp_num_layers:
        fields |= {"mtp_num_layers": m.mtp_num_layers, "mtp_loss_scaling_factor": m.mtp_loss_scaling_factor}
    return fields


def _parallel(spec: ExperimentSpec) -> dict[str, Any]:
    p = spec.parallelism
    interleaved = num_virtual_stages(p) > 1
    return p.model_dump() | {
        "virtual_pipeline_model_parallel_size": num_virtual_stages(p) if interleaved else None,
        "expert_tensor_parallel_size": p.expert_tensor_size,
        # Interleaving over batched p2p pairs messages wrongly on gloo (silently wrong gradients) and is refused by
        # megatron's own launcher at PP 2; without interleaving the overlapped form is refused by the schedule.
        "overlap_p2p_comm": interleaved,
        "batch_p2p_comm": not interleaved,
        # On gloo an in-flight isend still reads the output that deallocation would free.
        "deallocate_pipeline_outputs": p.deallocate_pipeline_outputs and not (interleaved and spec.gpu_type.is_cpu),
        "variable_seq_lengths": False,
    }


def _kernels(spec: ExperimentSpec) -> dict[str, Any]:
    k, te = spec.kernels, spec.kernels.transformer_impl == "transformer_engine"
    backend = k.attention_backend if te else "local"
    return {
        "attention_backend": AttnBackend[backend],
        "bias_activation_fusion": k.bias_activation_fusion and _fusible_activation(spec.model),
        # megatron-core's grouped experts with biases refuse it
        "bias_dropout_fusion": not (te and spec.model.moe and spec.model.add_bias_linear),
        "masked_softmax_fusion": te or (not spec.gpu_type.is_cpu and has_softmax_kernel()),
        "persist_layer_norm": te,
        "apply_rope_fusion": te and spec.model.mla is None,
        "gradient_accumulation_fusion": te and k.gradient_accumulation_fusion,
        "cross_entropy_loss_fusion": k.cross_entropy_loss_fusion,
        "cross_entropy_fusion_impl": k.cross_entropy_fusion_impl if te else "native",
        "tp_comm_overlap": spec.makes_user_buffers,
    }


def _fusible_activation(model: ModelSpec) -> bool:
    """Return whether megatron-core has a fused kernel: SwiGLU everywhere; GEGLU, and GELU with a bias, outside experts.

    Of gated QuickGELU it has one for experts only, which alone knows the limit and the offset.
    """
    if model.activation_func == "quick_gelu":
        return model.gated_linear_unit and 0 not in model.moe_layer_pattern
    if (
        model.activation_func == "squared_relu"
        or model.activation_func_clamp_value is not None
        or model.glu_linear_offset
    ):
        return False
    if model.activation_func == "silu":
        return model.gated_linear_unit
    return model.moe is None and (model.gated_linear_unit or model.add_bias_linear)


def has_weight_gradient_kernel() -> bool:
    """Return whether Apex's kernel is installed, which megatron-core's own output layer fuses gradients with."""
    return find_spec("fused_weight_gradient_mlp_cuda") is not None


def has_softmax_kernel() -> bool:
    """Return whether Apex's fused causal softmax is installed, for megatron-core's own attention."""
    return find_spec("scaled_upper_triang_masked_softmax_cuda") is not None


def _recompute(spec: ExperimentSpec) -> dict[str, Any]:
    fields = megatron_fields(spec.recompute).model_dump()
    return fields | {"recompute_modules": list(fields["recompute_modules"])}


def _precision(spec: ExperimentSpec) -> dict[str, Any]:
    dtype = DTYPES[spec.precision.params_dtype]
    return {
        "bf16": spec.precision.params_dtype == "bf16",
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "autocast_dtype": dtype,
        **spec.precision.transformer_config,
    }


def _cuda_graph(graph: CudaGraphSpec, config_class: type) -> dict[str, Any]:
    if graph.impl == "none":
        return {}
    known = {f.name for f in dataclasses.fields(config_class)}
    impl, scope = graph.impl, list(graph.scope)
    own_impl = "cuda_graph_modules" in known  # full_iteration became an implementation of its own in 0.18
    if impl == "full_iteration" and not own_impl:
        impl, scope = "local", ["full_iteration"]
    elif impl == "local" and scope == ["full_iteration"] and own_impl:
        impl, scope = "full_iteration", []
    return {"cuda_graph_impl": impl, "cuda_graph_scope": scope, "cuda_graph_warmup_steps": graph.warmup_steps}


def _moe(spec: ExperimentSpec) -> dict[str, Any]:
    moe, te = spec.model.moe, spec.kernels.transformer_impl == "transformer_engine"
    kernels = {name: value for name, value in spec.kernels if "moe_" in name}
    if kernels["moe_flex_dispatcher_backend"] is None:
        del kernels["moe_flex_dispatcher_backend"]
    # Only the legacy grouped MLP exists without transformer-engine; releases without it take TE's for granted.
    legacy = {"moe_use_legacy_grouped_gemm": moe.moe_grouped_gemm and not te}
    return moe.model_dump() | kernels | legacy | {"moe_layer_freq": _pattern(moe.moe_layer_freq)}


def _mla(spec: ExperimentSpec) -> dict[str, Any]:
    return {**spec.model.mla.model_dump(), "multi_latent_attention": True, "rotary_base": spec.model.rotary_base}


def _linear_attention(spec: ExperimentSpec) -> dict[str, Any]:
    fields = spec.model.linear_attention.model_dump()
    fields["linear_attention_freq"] = _pattern(spec.model.linear_attention.linear_attention_freq)
    return {**fields, "experimental_attention_variant": "gated_delta_net"}


def _pattern(freq: int | tuple[int, ...] | None) -> int | list[int] | None:
    return list(freq) if isinstance(freq, tuple) else freq


def _offload(spec: ExperimentSpec) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if spec.offload.cpu_offloading_num_layers:
        fields |= {
            "cpu_offloading": True,
            "cpu_offloading_weights": False,
            "cpu_offloading_num_layers": spec.offload.cpu_offloading_num_layers,
        }
    if spec.offload.offload_modules:
        fields |= {"fine_grained_activation_offloading": True, "offload_modules": list(spec.offload.offload_modules)}
    return fields


def ddp_config(spec: ExperimentSpec) -> DistributedDataParallelConfig:
    """Build the settings of gradient buffers and their reduction. The worker checks for NaN after timing."""
    d = spec.ddp
    fields = d.model_dump(exclude={"align_grad_reduce"}) | {
        "use_distributed_optimizer": spec.optimizer.use_distributed_optimizer,
        "check_for_nan_in_grad": False,
        "bucket_size": _bucket_size(spec) if d.overlap_grad_reduce else None,
        "fp8_param_gather": spec.precision.fp8_param_gather,
        "reuse_grad_buf_for_mxfp8_param_ag": spec.precision.name == "fp8_mx",
        # megatron-core's default shards nothing, not even under its FSDP
        "data_parallel_sharding_strategy": "optim_grads_params" if d.use_megatron_fsdp else "no_shard",
    }
    return DistributedDataParallelConfig(**fitted(DistributedDataParallelConfig, fields))


def _bucket_size(spec: ExperimentSpec) -> int:
    """Return the elements of a gradient bucket; megatron's launcher takes 40M, or 1M per data-parallel rank if more."""
    dp_cp = spec.data_parallel_size * spec.parallelism.context_parallel_size
    return spec.ddp.bucket_size or max(40_000_000, 1_000_000 * dp_cp)


def optimizer_config(spec: ExperimentSpec) -> OptimizerConfig:
    """Build the settings of the optimizer with the dtypes of ``spec``."""
    o = spec.optimizer
    offload = {"optimizer_cpu_offload", "optimizer_offload_fraction", "overlap_cpu_optimizer_d2h_h2d"}
    aware = {"use_precision_aware_optimizer"} | {name for name in type(o).model_fields if name.endswith("_dtype")}
    unused = (set() if o.optimizer_cpu_offload else offload) | (set() if o.use_precision_aware_optimizer else aware)
    asked = o.model_dump(exclude=unused)
    fields = {name: DTYPES[value] if name.endswith("_dtype") else value for name, value in asked.items()} | {
        "fp16": spec.precision.params_dtype == "fp16",
        "bf16": spec.precision.params_dtype == "bf16",
        "params_dtype": DTYPES[spec.precision.params_dtype],
        "overlap_param_gather": spec.ddp.overlap_param_gather,
    }
    if "fp8_recipe" in spec.precision.transformer_config:
        fields["fp8_recipe"] = spec.precision.transformer_config["fp8_recipe"]
        fields["reuse_grad_buf_for_mxfp8_param_ag"] = spec.precision.name == "fp8_mx"
    return OptimizerConfig(**fitted(OptimizerConfig, fields))
