"""Maps arguments of Megatron-LM's launcher to leaves of an ExperimentSpec, one row for each leaf."""

from collections.abc import Mapping
from dataclasses import dataclass

from harness.errors import BadRequestError
from harness.foreign.megatron_arguments import Arguments
from harness.foreign.megatron_refusals import refuse_what_has_no_leaf
from harness.foreign.megatron_values import (
    Read,
    activation,
    attention,
    balancing,
    chunks,
    dispatcher,
    dispatcher_backend,
    dtype,
    ffn,
    first,
    flag,
    graph,
    graph_parts,
    implementation,
    layout,
    names,
    own,
    pattern,
    positions,
    precision,
    recompute,
    shards,
    vocabulary,
    window,
)
from harness.resolve.recipe import Layer, Setting


@dataclass(frozen=True)
class Row:
    """One leaf, its arguments, its reader, and the argument (``only``) without which it does not exist."""

    path: str
    names: tuple[str, ...]
    read: Read
    only: str = ""


def _same(section: str, names: str, *, only: str = "") -> list[Row]:
    return [Row(f"{section}.{name}", (name,), _plain(name), only) for name in names.split()]


def _flags(section: str, names: str, *, only: str = "") -> list[Row]:
    return [Row(f"{section}.{name}", (name,), flag(name), only) for name in names.split()]


def _plain(name: str) -> Read:
    return lambda a: own(a, name)


_MOE, _MLA = "num_experts", "multi_latent_attention"
_NET = "experimental_attention_variant"

ROWS: tuple[Row, ...] = (
    Row("compute_dtype", ("fp4", "fp8", "bf16"), precision),
    *_same("model", "num_layers hidden_size num_attention_heads kv_channels make_vocab_size_divisible_by normalization"
           " attention_dropout hidden_dropout mtp_num_layers mtp_loss_scaling_factor softmax_type glu_linear_offset"
           " activation_func_clamp_value rotary_base"),
    Row("model.ffn_hidden_size", ("ffn_hidden_size", "intermediate_size", "hidden_size"), ffn),
    Row("model.num_query_groups", ("num_query_groups",),
        lambda a: a.get("num_query_groups") if a.get("group_query_attention") else None),
    Row("model.vocab_size", ("vocab_size", "padded_vocab_size", "tokenizer_type", "merge_file"), vocabulary),
    Row("model.share_embeddings_and_output_weights", ("untie_embeddings_and_output_weights",),
        lambda a: not a.get("untie_embeddings_and_output_weights")),
    Row("model.gated_linear_unit", ("swiglu", "quick_geglu"), lambda a: bool(a.get("swiglu") or a.get("quick_geglu"))),
    Row("model.activation_func", ("swiglu", "quick_geglu"), activation),
    *_flags("model", "add_bias_linear add_qkv_bias qk_layernorm attention_output_gate"),
    Row("model.layernorm_epsilon", ("layernorm_epsilon", "norm_epsilon"),
        lambda a: a.get("norm_epsilon") if "norm_epsilon" in a.given else a.get("layernorm_epsilon")),
    Row("model.layernorm_zero_centered_gamma", ("apply_layernorm_1p", "layernorm_zero_centered_gamma"),
        lambda a: bool(a.get("apply_layernorm_1p") or a.get("layernorm_zero_centered_gamma"))),
    Row("model.position_embedding_type", ("use_rotary_position_embeddings", "position_embedding_type",
        "use_llama2_rotary_position_embeddings"), positions),
    Row("model.rotary_percent", ("rotary_percent",), lambda a: a.get("rotary_percent")),
    Row("model.rope_scaling_factor", ("use_rope_scaling", "rope_scaling_factor"),
        lambda a: a.get("rope_scaling_factor") if a.get("use_rope_scaling") else None),
    Row("model.window_size", ("window_size",), lambda a: window(a.get("window_size"))),
    Row("model.window_attn_skip_freq", ("window_attn_skip_freq",), pattern("window_attn_skip_freq")),
    Row("model.moe.num_moe_experts", ("num_experts",), _plain("num_experts"), _MOE),
    *_same("model.moe", "moe_router_topk moe_shared_expert_intermediate_size moe_router_score_function "
                        "moe_router_num_groups"
           " moe_router_group_topk moe_router_topk_scaling_factor moe_router_bias_update_rate moe_router_dtype",
           only=_MOE),
    *_flags("model.moe", "moe_shared_expert_gate moe_router_enable_expert_bias moe_router_force_load_balancing "
                         "moe_grouped_gemm",
            only=_MOE),
    Row("model.moe.moe_ffn_hidden_size", ("moe_ffn_hidden_size", "ffn_hidden_size"),
        lambda a: a.get("moe_ffn_hidden_size") or ffn(a), _MOE),
    Row("model.moe.moe_layer_freq", ("moe_layer_freq",), pattern("moe_layer_freq"), _MOE),
    Row("model.moe.moe_router_load_balancing_type", ("moe_router_load_balancing_type",), balancing, _MOE),
    Row("model.moe.moe_aux_loss_coeff", ("moe_aux_loss_coeff",), lambda a: first(a.get("moe_aux_loss_coeff")), _MOE),
    Row("model.moe.moe_router_pre_softmax", ("moe_router_pre_softmax",),
        lambda a: bool(a.get("moe_router_pre_softmax")) or a.get("moe_router_topk") == 1, _MOE),
    *_same("model.mla", "q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim rotary_scaling_factor "
                        "mscale"
           " mscale_all_dim", only=_MLA),
    Row("model.mla.rope_type", ("rope_type",), lambda a: a.get("rope_type") or "yarn", _MLA),
    Row("model.mla.apply_rope_fusion", ("apply_rope_fusion", "rope_type"),
        lambda a: bool(a.get("apply_rope_fusion")) and a.get("rope_type") in (None, "yarn"), _MLA),
    *_same("model.linear_attention", "linear_conv_kernel_dim linear_key_head_dim linear_value_head_dim "
                                     "linear_num_key_heads"
           " linear_num_value_heads", only=_NET),
    Row("model.linear_attention.linear_attention_freq", ("linear_attention_freq",), pattern("linear_attention_freq"),
        _NET),
    *_same("parallelism", "tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size"
           " expert_model_parallel_size microbatch_group_size_per_vp_stage wgrad_deferral_limit"),
    Row("parallelism.virtual_pipeline_model_parallel_size",
        ("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank",
         "virtual_pipeline_model_parallel_size"), chunks),
    *_same("parallelism", "expert_tensor_parallel_size", only=_MOE),
    Row("parallelism.sequence_parallel", ("sequence_parallel",),
        lambda a: bool(a.get("sequence_parallel")) and a.get("tensor_model_parallel_size") != 1),
    Row("parallelism.pipeline_model_parallel_layout", ("pipeline_model_parallel_layout",), layout),
    *_flags("parallelism", "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split"
            " defer_embedding_wgrad_compute"),
    Row("parallelism.num_layers_in_first_pipeline_stage", ("decoder_first_pipeline_num_layers",),
        _plain("decoder_first_pipeline_num_layers")),
    Row("parallelism.num_layers_in_last_pipeline_stage", ("decoder_last_pipeline_num_layers",),
        _plain("decoder_last_pipeline_num_layers")),
    *_same("batch", "micro_batch_size global_batch_size"),
    Row("batch.seq_length", ("seq_length", "encoder_seq_length"),
        lambda a: a.get("seq_length") or a.get("encoder_seq_length")),
    Row("recompute", ("recompute_granularity", "recompute_activations"), recompute),
    *_flags("optimizer", "use_distributed_optimizer use_precision_aware_optimizer"),
    *[Row(f"optimizer.{name}", (name,), dtype(name))
      for name in ("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")],
    Row("optimizer.clip_grad", ("clip_grad",), _plain("clip_grad")),
    Row("ddp.grad_reduce_in_fp32", ("grad_reduce_in_bf16",), lambda a: not a.get("grad_reduce_in_bf16")),
    *_flags("ddp", "overlap_grad_reduce overlap_param_gather nccl_ub"),
    Row("ddp.align_grad_reduce", ("align_grad_reduce", "overlap_grad_reduce"),
        lambda a: bool(a.get("overlap_grad_reduce")) and bool(a.get("align_grad_reduce"))),
    Row("ddp.align_param_gather", ("align_param_gather", "overlap_param_gather"),
        lambda a: bool(a.get("align_param_gather") and a.get("overlap_param_gather") and chunks(a))),
    Row("ddp.bucket_size", ("ddp_bucket_size",), _plain("ddp_bucket_size")),
    Row("ddp.average_in_collective", ("ddp_average_in_collective",), flag("ddp_average_in_collective")),
    Row("ddp.use_megatron_fsdp", ("use_megatron_fsdp", "use_custom_fsdp"), shards),
    Row("offload.cpu_offloading_num_layers", ("cpu_offloading_num_layers",),
        lambda a: a.get("cpu_offloading_num_layers") or 0),
    Row("offload.offload_modules", ("offload_modules",),
        lambda a: names(a.get("offload_modules")) if a.get("fine_grained_activation_offloading") else ()),
    Row("cuda_graph.impl", ("cuda_graph_impl", "enable_cuda_graph", "external_cuda_graph"), graph),
    Row("cuda_graph.scope", ("cuda_graph_modules", "cuda_graph_scope", "cuda_graph_scope_deprecated"), graph_parts),
    Row("cuda_graph.warmup_steps", ("cuda_graph_warmup_steps",), _plain("cuda_graph_warmup_steps")),
    Row("kernels.transformer_impl", ("transformer_impl",), implementation),
    Row("kernels.attention_backend", ("attention_backend", "use_flash_attn"), attention),
    Row("kernels.gradient_accumulation_fusion", ("gradient_accumulation_fusion",),
        lambda a: bool(a.get("gradient_accumulation_fusion", True)) and implementation(a) != "local"),
    Row("kernels.bias_activation_fusion", ("bias_swiglu_fusion",),
        lambda a: bool(a.get("bias_swiglu_fusion") or not a.get("swiglu"))),
    *_flags("kernels", "cross_entropy_loss_fusion tp_comm_overlap moe_permute_fusion moe_shared_expert_overlap"
            " overlap_moe_expert_parallel_comm moe_pad_expert_input_to_capacity"),
    *_same("kernels", "cross_entropy_fusion_impl moe_expert_capacity_factor"),
    Row("kernels.moe_token_dispatcher_type", ("moe_enable_deepep", "moe_token_dispatcher_type"), dispatcher),
    Row("kernels.moe_flex_dispatcher_backend", ("moe_enable_deepep", "moe_flex_dispatcher_backend"),
        dispatcher_backend),
    Row("train.manual_gc", ("manual_gc",), flag("manual_gc")),
    Row("train.manual_gc_interval", ("manual_gc_interval",), lambda a: a.get("manual_gc_interval") or 0),
)  # fmt: skip


_DECIMAL = ("attention_dropout", "hidden_dropout", "rotary_percent", "rotary_scaling_factor", "mscale",
            "mscale_all_dim", "clip_grad", "layernorm_epsilon", "mtp_loss_scaling_factor",
            "moe_router_topk_scaling_factor", "moe_aux_loss_coeff", "moe_router_bias_update_rate",
            "rope_scaling_factor", "glu_linear_offset", "activation_func_clamp_value",
            "moe_expert_capacity_factor")  # fmt: skip


def arguments_layer(a: Arguments) -> Layer:
    """Return every setting of the arguments; an argument that was not given has Megatron-LM's default.

    BadRequestError with every argument that has no counterpart here, at its place.
    """
    layer = readable_settings(a)
    refuse_what_has_no_leaf(a, layer)
    a.problems.raise_if_any()
    if a.num_gpus is not None:
        layer["num_gpus"] = Setting(a.num_gpus.value, a.num_gpus.source)
    layer |= {f"env.{name}": Setting(str(given.value), given.source) for name, given in a.environment.items()}
    return layer


def readable_settings(a: Arguments) -> dict[str, Setting]:
    """Return the settings that the rows read, also if other arguments have no leaf. Problems stay in ``a``."""
    layer: dict[str, Setting] = {}
    for row in ROWS:
        a.read.update(row.names)
        if row.only and not a.get(row.only):
            continue
        value = row.read(a)
        name = row.path.rpartition(".")[2]
        if name in _DECIMAL and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if name == "rotary_base" and isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is not None or row.path in ("model.mla.q_lora_rank",):
            layer[row.path] = Setting(value, a.source(*row.names))
    return layer


REQUIRED: Mapping[str, str] = {
    "model.num_layers": "--num-layers", "model.hidden_size": "--hidden-size",
    "model.num_attention_heads": "--num-attention-heads",
    "batch.micro_batch_size": "--micro-batch-size", "batch.seq_length": "--seq-length",
}  # fmt: skip
"""Settings that no job lacks, with their options."""


def require_sizes(a: Arguments, layer: Layer) -> None:
    """Raise BadRequestError with every size that is missing."""
    missing = [option for path, option in REQUIRED.items() if path not in layer]
    if missing:
        raise BadRequestError(f"{a.label}: no {', '.join(missing)}", remedy="give all arguments of the job")
