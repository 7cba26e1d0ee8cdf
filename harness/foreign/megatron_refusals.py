"""Refuses arguments of Megatron-LM that change the memory or the time of a step and have no leaf in an ExperimentSpec.

It also refuses every other argument that no row reads and that is not at Megatron-LM's default, unless it is harmless.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from harness.foreign.megatron_arguments import Arguments, arguments, suggested
from harness.resolve.recipe import Setting
from harness.units import GIB, format_bytes, shortened

FEATURES: Mapping[str, str] = {
    "optimizer_cpu_offload": "an optimizer in host memory",
    "use_torch_fsdp2": "torch's FSDP2; use Megatron-FSDP (--use-megatron-fsdp)",
    "use_legacy_models": "Megatron-LM's legacy models",
    "fp32_residual_connection": "residual connections in FP32",
    "fp16_lm_cross_entropy": "a loss in FP16",
    "squared_relu": "squared ReLU",
    "openai_gelu": "OpenAI's GELU",
    "apply_residual_connection_post_layernorm": "residual connections behind the norm",
    "qk_l2_norm": "L2 norms of queries and keys",
    "qk_clip": "clipped queries and keys",
    "rotary_interleaved": "interleaved rotary embeddings",
    "no_rope_freq": "layers without rotary embeddings",
    "masked_softmax_fusion": "megatron's own attention without its fused softmax",
    "spec": "a layer specification of your own",
    "yaml_cfg": "a configuration in another file",
    "hybrid_override_pattern": "a hybrid model (Mamba)",
    "hybrid_layer_pattern": "a hybrid model (Mamba)",
    "hybrid_attention_ratio": "a hybrid model (Mamba)",
    "is_hybrid_model": "a hybrid model (Mamba)",
    "hybrid_mlp_ratio": "a hybrid model (Mamba)",
    "heterogeneous_layers_config_path": "layers of different sizes",
    "heterogeneous_layers_config_encoded_json": "layers of different sizes",
    "decoder_num_layers": "a model with encoder and decoder",
    "decoder_seq_length": "a model with encoder and decoder",
    "encoder_tensor_model_parallel_size": "a model with encoder and decoder",
    "encoder_pipeline_model_parallel_size": "a model with encoder and decoder",
    "pipeline_model_parallel_split_rank": "a model with encoder and decoder",
    "standalone_embedding_stage": "a pipeline stage of the embedding alone",
    "rampup_batch_size": "a batch size that grows; plan one of its sizes",
    "step_batch_size_schedule": "a batch size that changes; plan one of its sizes",
    "decrease_batch_size_if_needed": "a batch size that shrinks",
    "batch_size": "arguments that Megatron-LM removed; use --micro-batch-size",
    "model_parallel_size": "arguments that Megatron-LM removed; use --tensor-model-parallel-size",
    "checkpoint_activations": "arguments that Megatron-LM removed; use --recompute-granularity full",
    "activations_checkpoint_method": "arguments that Megatron-LM removed; use --recompute-method",
    "moe_layer_recompute": "arguments that Megatron-LM replaced; use --recompute-modules moe",
    "vocab_extra_ids": "tokens beside those of the tokenizer; add them to --vocab-size",
    "overlap_p2p_comm_warmup_flush": "messages that overlap in warm-up and flush",
    "fp8_wgrad": "weight gradients not in FP8",
    "moe_use_legacy_grouped_gemm": "the legacy grouped matrix product",
    "moe_latent_size": "experts behind a latent projection",
    "freeze_all_layers": "frozen layers",
    "perform_rl_step": "reinforcement learning",
    "logits_load_dir": "distillation",
    "logits_save_dir": "distillation",
    "num_distributed_optimizer_instances": "several instances of the distributed optimizer; with n instances, plan "
    "the job on "
    "1/n of the GPUs with 1/n of the global batch size: each instance shards its states over that many GPUs",
    "enable_mhc_connections": "hyper-connections",
    "use_kitchen_attention": "attention of another library",
}
"""Arguments that mbr-perf refuses unless at their default: their meaning and, after a semicolon, what to do instead."""

SMALL = frozenset({
    "apply_query_key_layer_scaling", "attention_softmax_in_fp32", "max_position_embeddings", "moe_router_fusion",
    "bias_gelu_fusion", "bias_dropout_fusion", "no_persist_layer_norm", "apply_rope_fusion", "tp_comm_overlap_cfg",
    "deterministic_mode", "moe_z_loss_coeff", "moe_input_jitter_eps", "use_tp_pp_dp_mapping",
    "moe_router_padding_for_fp8", "moe_router_padding_for_quantization", "clone_scatter_output_in_embedding",
    "gradient_reduce_div_fusion", "ddp_pad_buckets_for_high_nccl_busbw", "high_priority_stream_groups", "profile",
    "sft", "use_pytorch_profiler", "record_memory_history", "disable_jit_fuser", "use_te_activation_func",
    "flash_attention_version", "disable_bf16_reduced_precision_matmul", "empty_unused_memory_level",
    "create_all_gather_group", "high_priority_a2a_comm_stream", "moe_deepep_num_sms", "moe_hybridep_num_sms",
    "moe_flex_dispatcher_num_sms", "timing_log_level", "train_sync_interval", "log_max_attention_logit",
})  # fmt: skip
"""Arguments of small effect: fusions of small kernels, scores in FP32, deterministic kernels, positions beyond the
sequence, the dispatcher's share of the GPU, waits of the host. mbr-perf predicts the step without them, and a note
names them."""

DETERMINISTIC_NETS = (
    "gated delta nets then run without the kernels of flash-linear-attention, the only ones that mbr-perf models"
)
"""Why a setting of small effect is refused in a model with gated delta nets (`ssm/gated_delta_net.py` forward)."""

NOTED: Mapping[str, str] = {
    "eval_micro_batch_size": "larger micro-batches than in training, so an evaluation may raise the peak",
    "rerun_mode": "every step runs twice, so steps take about twice as long",
    "save_activations_interval": "some steps write tensors to files",
    "save_dgrads_interval": "some steps write tensors to files",
    "save_wgrads_interval": "some steps write tensors to files",
    "moe_routing_trace_path": "steps write their routing to files",
    "config_logger_dir": "modules write their inputs to files",
    "delay_wgrad_compute": "weight gradients are computed later",
    "first_last_layers_bf16": "the first and the last layers stay in BF16",
    "overlap_param_gather_with_optimizer_step": "the first weights are gathered earlier",
    "use_transformer_engine_op_fuser": "kernels that mbr-perf does not run",
}
"""Arguments that change some steps, or little of each. mbr-perf predicts steps without them; a note says what changes.

The last four are those that `container_known` notes in a file of Megatron-Bridge.
"""

DERIVED = frozenset({
    "rank", "world_size", "data_parallel_size", "transformer_pipeline_model_parallel_size", "params_dtype", "iteration",
    "virtual_pipeline_model_parallel_size", "consumed_train_samples", "consumed_valid_samples", "skipped_train_samples",
    "variable_seq_lengths", "encoder_num_layers", "encoder_seq_length", "model_type", "do_train", "do_valid", "do_test",
    "gtp_weight_remat_size", "expert_gtp_weight_remat_size", "use_layer_wise_distributed_optimizer", "curr_iteration",
    "_is_global_batch_size_explicitly_specified", "blendable_index_path", "async_tensor_model_parallel_allreduce",
    "overlap_p2p_comm", "align_grad_reduce", "align_param_gather", "delay_grad_reduce", "delay_param_gather",
    "num_floating_point_operations_so_far", "train_tokens", "embedding_weights_in_fp32", "retro_add_retriever",
    "override_lr_scheduler", "use_checkpoint_lr_scheduler", "mmap_warmup", "scatter_gather_tensors_in_pipeline",
    "use_contiguous_buffers_in_local_ddp", "fp8_e4m3", "fp8_hybrid", "main_grads_dtype", "outer_dp_sharding_strategy",
    "cp_comm_type", "optimizer", "tensor_parallel_num_weight_shards", "cuda_graph_scope_deprecated",
    "expert_tensor_parallel_num_weight_shards", "transformer_impl", "torch_fsdp2_reshard_after_forward", "DDP_impl",
    "megatron_fsdp_main_params_dtype", "megatron_fsdp_main_grads_dtype", "megatron_fsdp_grad_comm_dtype",
})  # fmt: skip
"""Names that follow from others, or that `_refuse_combinations` or `_refuse_context_communication` checks."""


_LOCAL = frozenset({"masked_softmax_fusion"})
"""Arguments that only the local layers read, not those of transformer-engine."""


def refuse_what_has_no_leaf(a: Arguments, layer: dict[str, Setting]) -> None:
    """Refuse every argument without a leaf; note in ``layer`` those of small effect or that change some steps."""
    small: list[str] = []
    noted = [*_missing_bytes(a)]
    for name, given in a.given.items():
        option = given.source.rpartition(" ")[2]
        if a.is_default(name) or _is_idle(a, name):
            continue
        if name in FEATURES:
            what, _, instead = FEATURES[name].partition("; ")
            a.refuse(name, f"mbr-perf does not model {what}", instead or "plan the job without it")
        elif name in NOTED:
            noted.append(f"{option} {shortened(str(given.value))}: {NOTED[name]}")
        elif name in a.read or name in DERIVED:
            continue
        elif name in SMALL:
            small.append(option)
        else:
            _refuse_unmodelled(a, name)
    _refuse_combinations(a)
    _refuse_context_communication(a)
    remarks = [f"The prediction leaves out: {'; '.join(sorted(noted))}"] if noted else []
    remarks += [f"Small effect, left out: {', '.join(sorted(small))}"] if small else []
    if remarks and "model.num_layers" in layer:
        note = f"{a.label}: {'. '.join(remarks)}"
        layer["model.num_layers"] = replace(layer["model.num_layers"], note=note)
    _note_idle_recompute(a, layer)


def _refuse_unmodelled(a: Arguments, name: str) -> None:
    """Refuse an argument that no row reads, unless it is harmless."""
    if name not in arguments():
        if a.is_whole:
            a.refuse(name, f"{shortened(str(a.given[name].value))}: no argument of Megatron-LM that mbr-perf knows",
                     suggested(name, arguments()))  # fmt: skip
    elif not arguments()[name].harmless:
        usual = arguments()[name].defaults[0]
        a.refuse(name, f"mbr-perf does not model it (Megatron-LM's default: {usual})", "plan the job without it")


def _is_idle(a: Arguments, name: str) -> bool:
    """Return whether an argument that is not at its default changes nothing because of the others."""
    if name == "eval_micro_batch_size":
        sizes = a.get(name), a.get("micro_batch_size")
        return isinstance(sizes[0], int) and isinstance(sizes[1], int) and sizes[0] <= sizes[1]
    if name == "min_offloaded_tensor_size":
        return not a.get("fine_grained_activation_offloading")
    return name in _LOCAL and a.get("transformer_impl") != "local"


# From this size on a note names what the predicted peak leaves out.
_LEAST_NOTED_BYTES = GIB // 4


def _missing_bytes(a: Arguments) -> Iterator[str]:
    """Yield what the job holds and the prediction does not: masks of the loader, a second buffer of weights."""
    micro_batch, length = a.get("micro_batch_size"), a.get("seq_length")
    if isinstance(micro_batch, int) and isinstance(length, int) and a.get("create_attention_mask_in_dataloader", True):
        mask_bytes = micro_batch * length**2
        if mask_bytes >= _LEAST_NOTED_BYTES:
            yield (f"the attention mask of Megatron-LM's data loader ({format_bytes(mask_bytes)} for each micro-batch "
                   f"that holds it, avoid it "
                   "with --no-create-attention-mask-in-dataloader)")  # fmt: skip
    stores_mxfp8 = a.get("fp8_recipe") == "mxfp8" and a.get("fp8_param_gather")
    if stores_mxfp8 and not a.get("reuse_grad_buf_for_mxfp8_param_ag"):
        yield "a buffer for gathered weights beside the gradients' (avoid it with --reuse-grad-buf-for-mxfp8-param-ag)"


def _note_idle_recompute(a: Arguments, layer: dict[str, Setting]) -> None:
    """Note arguments of recompute that no granularity turns on: the block of a log always has them."""
    idle = [name for name in _RECOMPUTE if a.get(name) is not None and name in a.given]
    if idle and not a.is_whole and a.get("recompute_granularity") is None and not a.get("recompute_activations"):
        note = f"{a.source(idle[0])} has no effect without --recompute-granularity: nothing is recomputed"
        layer["recompute"] = replace(layer["recompute"], note=note)


def _refuse_combinations(a: Arguments) -> None:
    """Refuse values of arguments that mbr-perf models with other values, or in other jobs, only."""
    known: dict[str, tuple[tuple[object, ...], str]] = {
        "optimizer": (("adam",), "an optimizer other than Adam"),
        "outer_dp_sharding_strategy": (("no_shard",), "hybrid sharding"),
        "transformer_impl": (("transformer_engine", "local"), "layers of another implementation"),
        "experimental_attention_variant": ((None, "gated_delta_net"), "another kind of attention"),
    }
    if a.get("use_megatron_fsdp"):
        low = (("fp32", "auto", None, "torch.float32"), "Megatron-FSDP with weights or gradients below fp32")
        known |= {f"megatron_fsdp_{name}_dtype": low for name in ("main_params", "main_grads", "grad_comm")}
    if not a.is_whole and any(a.get(name) for name in _CHUNKED):
        known["overlap_p2p_comm"] = ((True,), "interleaved stages without overlapped messages")
    tensor = a.get("tensor_model_parallel_size")
    for name in ("tensor_parallel_num_weight_shards", "expert_tensor_parallel_num_weight_shards"):
        known[name] = ((None, tensor, a.get("expert_tensor_parallel_size")), "weights in more shards than TP")
    known["encoder_num_layers"] = ((None, a.get("num_layers")), "a model with encoder and decoder")
    for name, (values, what) in known.items():
        value = a.get(name)
        if name in a.given and value not in values:
            listed = ", ".join(str(each) for each in dict.fromkeys(values) if each is not None)
            a.refuse(name, f"{shortened(str(value))}: mbr-perf does not model {what}", f"it models {listed or 'none'}")
    if a.get("experimental_attention_variant") and a.get("deterministic_mode"):
        a.refuse("deterministic_mode", DETERMINISTIC_NETS, "plan the job without it")


def _refuse_context_communication(a: Arguments) -> None:
    """Refuse context parallelism that does not pass keys and values between neighbours; say how many bytes it adds."""
    given = a.get("cp_comm_type")
    kinds = {str(kind) for kind in (given if isinstance(given, list | tuple) else [given])} - {"None"}
    cp_size = a.get("context_parallel_size")
    if "cp_comm_type" not in a.given or kinds <= {"p2p"} or cp_size in (None, 1):
        return
    remedy = "plan it with --cp-comm-type p2p"
    sizes = [a.get(name) for name in ("micro_batch_size", "seq_length", "num_attention_heads", "hidden_size")]
    if kinds <= {"a2a", "a2a+p2p"} and all(isinstance(size, int) for size in (*sizes, cp_size)):
        batch, length, heads, hidden = sizes
        width = a.get("v_head_dim") if a.get("multi_latent_attention") else a.get("kv_channels") or hidden // heads
        num_values = batch * length * heads * width // (cp_size * a.get("tensor_model_parallel_size", 1))
        remedy += (
            f", and add {format_bytes(2 * num_values)} per micro-batch in flight for each layer that does not "
            f"recompute "
            f"core_attn: with a2a it keeps its attention output twice"
        )  # in BF16
    a.refuse("cp_comm_type", f"{', '.join(sorted(kinds))}: mbr-perf models context parallelism by p2p only", remedy)


_RECOMPUTE = ("recompute_modules", "recompute_method", "recompute_num_layers")
_CHUNKED = ("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank")
