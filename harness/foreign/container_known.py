"""Lists fields of a Megatron-Bridge `ConfigContainer` without a row in `container_fields`, and their values.

The names are those of Megatron-Bridge 0.3.1, 0.4.2, 0.5.1, 0.6.0 and commit 067f987, with the fields of the Megatron-LM
that each of them pins.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from harness.records.reading import PlainValue

OFF: tuple[PlainValue, ...] = (None, False, 0, "", (), {}, "none")
"""Values that switch a setting off."""


@dataclass(frozen=True)
class Known:
    """One field, and ``why`` its value matters or does not.

    ``values``: what the file may have; None for any value, because the field changes neither memory nor time of a step.
    Another value is refused, or, if ``is_noted``, read with a note. The row applies where the setting ``only`` is on,
    or, with ``>1``, where it is above 1.
    """

    path: str
    values: tuple[PlainValue, ...] | None
    why: str
    is_noted: bool = False
    only: str = ""


def _any(section: str, why: str, names: str) -> Iterator[Known]:
    """Yield fields that change neither memory nor time."""
    for name in names.split():
        yield Known(f"{section}.{name}", None, why)


def _only(
    section: str, names: str, why: str, *values: PlainValue, noted: bool = False, only: str = ""
) -> Iterator[Known]:
    """Yield fields that must be ``values``, or off where there are none."""
    for name in names.split():
        yield Known(f"{section}.{name}", values or OFF, why, noted, only)


_MOE, _FSDP, _UB, _FP8 = "model.num_moe_experts", "ddp.use_megatron_fsdp", "model.tp_comm_overlap", "model.fp8"
_LACKS = "mbr-perf does not have it"
_START = "at the start only"
_INFERENCE = "inference only"
_COPIED = "Megatron-Bridge copies it into model, ddp and optimizer before it trains"

_MODEL: tuple[Known, ...] = (
    *_any("model", _START, "init_method init_method_std output_layer_init_method embedding_init_method"
        " embedding_init_method_std use_cpu_initialization perform_initialization init_model_with_meta_device"
        " test_mode"),
    *_any("model", "names the origin of the model", "max_position_embeddings hf_model_id hf_model_revision"
        " generation_config extra_checkpoint_metadata"),
    *_any("model", _INFERENCE, "flash_decode inference_cuda_graph_scope inference_disable_triton_nvls_kernels"
        " inference_fuse_tp_communication inference_grouped_gemm_backend inference_moe_disable_fused_quant_kernels "
        "inference_moe_token_dispatcher_type inference_rng_tracker inference_sampling_seed "
        "use_inference_optimized_layers"
        " mlp_chunks_for_prefill nccl_all_reduce_for_prefill cache_mla_latents"),
    *_any("model", "logs only", "barrier_with_L1_time config_logger_dir moe_per_layer_logging timers"),
    *_any("model", "only without transformer-engine's layers", "attention_softmax_in_fp32 masked_softmax_fusion"
        " persist_layer_norm memory_efficient_layer_norm async_tensor_model_parallel_allreduce tp_comm_split_ag "
        "tp_comm_split_rs"
        " kitchen_attention_backend use_kitchen_attention"),
    *_any("model", "only with fp16, or a set of constants", "fp8_margin fp8_interval fp8_wgrad beta_fast beta_slow"
        " tp_only_amax_red moe_token_drop_policy moe_router_force_biased moe_router_quantile_balancing_ema"
        " moe_router_topk_limited_devices calculate_per_token_loss rotary_interleaved mtp_enabled"),
    *_any("model", "sizes of a part that another setting switches on", "mamba_head_dim mamba_num_groups"
        " mamba_num_heads mamba_state_dim mamba_training_ssm_states_dtype use_mamba_mem_eff_path gdp_num_householder "
        "dsa_indexer_head_dim dsa_indexer_k_norm_epsilon dsa_indexer_k_norm_fp32 dsa_indexer_loss_coeff "
        "dsa_indexer_n_heads dsa_indexer_rope_interleaved dsa_indexer_rotate_activation dsa_indexer_scoring_relu "
        "dsa_indexer_skip_topk_offset dsa_indexer_topk dsa_indexer_topk_freq dsa_indexer_use_sparse_loss "
        "dsa_kernel_backend qk_clip_alpha qk_clip_threshold mup_attn_scale_power mup_base_head_dim "
        "mup_base_hidden_size mup_embedding_mult mup_output_mult mup_width_mult "
        "moe_paged_stash_buffer_size_factor_cpu moe_paged_stash_buffer_size_factor_cuda moe_paged_stash_page_size"
        " num_layers_at_end_in_bf16 num_layers_at_start_in_bf16 tp_comm_bootstrap_backend"),
    *_any("model", "which kernel adds or copies: the same tensors", "bias_dropout_fusion bias_dropout_add_fusion"
        " clone_scatter_output_in_embedding moe_router_fusion moe_router_padding_for_fp8 moe_single_grouped_bias "
        "moe_single_grouped_weight batch_p2p_sync"
        " use_fused_weighted_squared_relu hetereogenous_dist_checkpoint autocast_dtype enable_autocast"),
    *_any("model", "which streams and cores the kernels use", "high_priority_a2a_comm_stream use_te_rng_tracker"
        " cuda_graph_use_single_mempool moe_deepep_num_sms moe_hybridep_num_sms moe_flex_dispatcher_num_sms"
        " moe_hybridep_num_sms_preprocessing moe_hybridep_num_blocks_permute moe_hybridep_num_blocks_unpermute"),
    *_any("model", "read with another field", "multi_latent_attention fp16 fp8 fp8_recipe fp8_param"
        " fp8_amax_history_len fp8_amax_compute_algo fp4 fp4_recipe fp4_param experimental_attention_variant "
        "recompute_method recompute_modules recompute_num_layers distribute_saved_activations rope_scaling "
        "cpu_offloading fine_grained_activation_offloading tp_comm_overlap_cfg overlap_p2p_comm batch_p2p_comm "
        "enable_cuda_graph external_cuda_graph moe_enable_deepep"
        " transformer_layer_spec params_dtype pipeline_dtype"),
    *_any("model", "mbr-perf always pads the vocabulary: at most 0.1 % of the peak of the recorded files",
        "should_pad_vocab"),
    *_only("model", "apply_query_key_layer_scaling apply_residual_connection_post_layernorm"
        " qk_l2_norm qk_clip log_max_attention_logit fp32_residual_connection fp16_lm_cross_entropy logit_dtype "
        "activation_func_fp8_input_store use_te_activation_func fused_residual_rmsnorm fused_single_qkv_rope "
        "softmax_scale no_rope_freq mrope_section seq_len_interpolation_factor disable_bf16_reduced_precision_matmul "
        "use_arbitrary_attention_mask use_mup heterogeneous_block_specs restore_modelopt_state quant_recipe "
        "use_kitchen"
        " batch_invariant_mode flash_attention_version fp8_quantizer_factory fp4_quantizer_factory", _LACKS),
    *_only("model", "is_hybrid_model", "Mamba layers"),
    *_only("model", "fp8_multi_head_attention", _LACKS, only=_FP8),
    *_only("model", "dense_grouped_gemm use_grouped_gemm_for_dense_mlp use_grouped_gemm_for_shared_expert"
        " hierarchical_context_parallel_sizes hybrid_context_parallel max_seqlen_per_dp_cp_rank variable_seq_lengths "
        "use_ring_exchange_p2p num_microbatches_with_partial_activation_checkpoints overlap_p2p_comm_warmup_flush "
        "symmetric_ar_type tensor_parallel_num_weight_shards expert_tensor_parallel_num_weight_shards "
        "gtp_remat_opt_in_modules finalize_model_grads_func grad_scale_func grad_sync_func param_sync_func "
        "no_sync_func post_wrap_hooks pre_wrap_hooks"
        " experimental_attention_variant_loss_scale_func moe_grad_scale_func mtp_grad_scale_func", _LACKS),
    *_only("model", "gtp_weight_remat_size expert_gtp_weight_remat_size mlp_chunks_for_training", _LACKS, 1),
    *_only("model", "pipeline_model_parallel_comm_backend", "messages of the pipeline use NCCL here", None, "nccl"),
    *_only("model", "cp_comm_type", "context parallelism passes keys and values on, `p2p`, here", None, "p2p",
        only="model.context_parallel_size>1"),
    *_only("model", "parallel_output scatter_embedding_sequence_parallel", _LACKS, True),
    *_only("model", "tp_comm_bulk_dgrad tp_comm_bulk_wgrad tp_comm_overlap_ag tp_comm_overlap_rs", _LACKS, True,
        only=_UB),
    *_only("model", "tp_comm_atomic_ag tp_comm_atomic_rs tp_comm_overlap_disable_fc1 tp_comm_overlap_disable_qkv"
        " tp_comm_overlap_rs_dgrad", _LACKS, only=_UB),
    *_only("model", "cpu_offloading_activations", _LACKS, True, only="model.cpu_offloading"),
    *_only("model", "cpu_offloading_weights cpu_offloading_double_buffering", _LACKS, only="model.cpu_offloading"),
    *_any("model", "host memory only", "cpu_offloading_retain_pinned_cpu_buffers"),
    *_only("model", "activation_offload_fraction", _LACKS, 1, only="model.fine_grained_activation_offloading"),
    *_only("model", "delta_offload_bytes_across_pp_ranks", _LACKS, only="model.fine_grained_activation_offloading"),
    *_only("model", "min_offloaded_tensor_size", _LACKS, 2**20, only="model.fine_grained_activation_offloading"),
    *_only("model", "delay_offload_until_cuda_graph fine_grained_offloading_max_inflight_offloads", "copies to the"
        " host wait",
        noted=True, only="model.fine_grained_activation_offloading"),
    *_only("model", "cuda_graph_retain_backward_graph", _LACKS),
    *_only("model", "mtp_detach_heads mtp_standalone mtp_use_repeated_layer mtp_hybrid_override_pattern", _LACKS,
        only="model.mtp_num_layers"),
    *_only("model", "moe_extended_tp moe_token_dropping moe_input_jitter_eps moe_latent_size moe_layer_recompute"
        " moe_use_legacy_grouped_gemm moe_apply_probs_on_input moe_enable_routing_replay moe_ncclep_static_shape "
        "moe_ncclep_use_symm_mem moe_ncclep_zero_copy ep_overlap_early_attn_memory_release"
        " moe_shared_expert_glu_interleave_size", _LACKS, only=_MOE),
    *_only("model", "moe_z_loss_coeff", "one more loss of the router", noted=True, only=_MOE),
    *_only("model", "moe_paged_stash", "the experts' activations move to pages, which mbr-perf does not have",
        only=_MOE),
    *_only("model", "moe_expert_rank_capacity_factor", "a limit of tokens per rank, which mbr-perf does not have",
        only=_MOE),
    *_only("model", "moe_pad_experts_for_cuda_graph_inference moe_hybridep_pad_uneven_dispatch_inputs"
        " moe_router_padding_for_quantization", "experts compute padding", noted=True, only=_MOE),
    *_only("model", "moe_mlp_glu_interleave_size moe_permute_fusion_into_hybridep use_transformer_engine_op_fuser"
        " overlap_dispatch_backward_with_experts_wgrad delay_wgrad_compute", "kernels that mbr-perf does not run",
        noted=True, only=_MOE),
    *_only("model", "use_transformer_engine_full_layer_spec", "a layer of transformer-engine in place of"
        " megatron-core's", noted=True),
    *_only("model", "mla_down_proj_fusion", "one GEMM in place of two", noted=True,
        only="model.multi_latent_attention"),
    *_only("model", "deterministic_mode", "slower kernels", noted=True),
    *_only("model", "first_last_layers_bf16", "the first and the last layers stay in bf16", noted=True, only=_FP8),
    *_only("model", "fp8_dot_product_attention", "attention in FP8", noted=True),
    *_only("model", "fp8_output_proj", "the output layer in FP8", noted=True, only=_FP8),
    *_only("model", "disable_parameter_transpose_cache", "transposed FP8 weights are made anew in each backward"
        " pass", noted=True,
        only=_FP8),
)  # fmt: skip

_OTHERS: tuple[Known, ...] = (
    *_any("ddp", "checks only", "check_for_large_grads check_for_nan_in_grad"),
    *_any("ddp", "read with another field", "fp8_param_gather fp4_param_gather reuse_grad_buf_for_mxfp8_param_ag"
        " delay_wgrad_compute use_custom_fsdp use_distributed_optimizer"),
    *_any("ddp", "which kernel or registration: the same tensors", "gradient_reduce_div_fusion"
        " disable_symmetric_registration fsdp_manual_registration megatron_fsdp_version "
        "megatron_fsdp_use_decoupled_grad"
        " fsdp_all_gather_in_start_param_sync"),
    *_only("ddp", "num_distributed_optimizer_instances", "several instances of the distributed optimizer (HSDP); with "
                                                         "n of them,"
        " plan 1/n of the GPUs with 1/n of the global batch size: their shards have the same size", 1),
    *_only("ddp", "outer_dp_sharding_strategy", "sharding over several groups (HSDP)", "no_shard"),
    *_only("ddp", "num_buckets param_name_patterns_for_fp32_local_accumulation reduce_scatter_with_fp32_accumulation"
        " pad_buckets_for_high_nccl_busbw", _LACKS),
    *_only("ddp", "data_parallel_sharding_strategy", "FSDP shards weights, gradients and states here",
        "optim_grads_params", only=_FSDP),
    *_only("ddp", "preserve_fp32_weights", _LACKS, True, only=_FSDP),
    *_only("ddp", "megatron_fsdp_main_params_dtype", _LACKS, None, "torch.float32", only=_FSDP),
    *_only("ddp", "keep_fp8_transpose_cache megatron_fsdp_grad_comm_dtype megatron_fsdp_main_grads_dtype"
        " fsdp_db_use_persist_buf_on_alloc_fail megatron_fsdp_cuda_graph_mode "
        "megatron_fsdp_enable_fine_grained_param_gather"
        " megatron_fsdp_max_pool_double_buffer", _LACKS, only=_FSDP),
    *_only("ddp", "fsdp_double_buffer suggested_communication_unit_size", "buffers of gathered weights", noted=True,
        only=_FSDP),
    *_any("dist", "groups and timeouts of the start", "distributed_timeout_minutes"
        " distributed_timeout_seconds_after_init flight_recorder_dump_on_timeout flight_recorder_dump_path "
        "flight_recorder_extra_dump_on_exec local_rank flight_recorder_include_only_active "
        "flight_recorder_include_stack_trace flight_recorder_trace_buffer_size external_gpu_device_mapping lazy_init "
        "lazy_mpu_init use_gloo_process_groups eval_context_parallel_size"
        " enable_megatron_core_experimental high_priority_stream_groups use_decentralized_pg"),
    *_any("dist", "read with another field", "use_megatron_fsdp"),
    *_only("dist", "distributed_backend", "GPUs communicate by NCCL", "nccl"),
    *_only("dist", "use_torch_fsdp2 use_tp_pp_dp_mapping", _LACKS),
    *_only("dist", "disable_jit_fuser use_sharp sharp_enabled_group nccl_communicator_config_path", "other kernels or"
        " messages", noted=True),
    *_any("optimizer", "a constant of the optimizer", "adam_beta1 adam_beta2 adam_eps adaptive_muon_beta2"
        " adaptive_muon_eps adaptive_muon_moment2_method apply_wd_to_qk_layernorm decoupled_lr decoupled_min_lr "
        "decoupled_weight_decay grad_norm_skip_threshold hysteresis initial_loss_scale lion_beta1 lion_beta2 "
        "loss_scale loss_scale_window min_loss_scale min_lr muon_coefficient_type muon_extra_scale_factor "
        "muon_fp32_matmul_prec muon_momentum muon_nesterov muon_num_ns_steps muon_scalar_optimizer muon_scale_mode "
        "muon_split_qkv muon_tp_mode muon_use_nesterov muon_use_syrk sgd_momentum"
        " soap_precondition_frequency soap_shampoo_beta soap_use_kl_shampoo"),
    *_any("optimizer", "logs only", "barrier_with_L1_time config_logger_dir log_num_zeros_in_grad timers"),
    *_any("optimizer", "only with optimizer_cpu_offload", "optimizer_offload_fraction overlap_cpu_optimizer_d2h_h2d"
        " pin_cpu_grads"
        " pin_cpu_params use_torch_optimizer_for_cpu_offload"),
    *_any("optimizer", "as in model and ddp", "bf16 params_dtype fp8_recipe overlap_param_gather"
        " reuse_grad_buf_for_mxfp8_param_ag"),
    *_only("optimizer", "optimizer", "mbr-perf has only Adam", "adam"),
    *_only("optimizer", "fp16", "mbr-perf has no fp16"),
    *_only("optimizer", "optimizer_cpu_offload use_layer_wise_distributed_optimizer", _LACKS),
    *_only("optimizer", "store_param_remainders", _LACKS, True),
    *_only("optimizer", "overlap_param_gather_with_optimizer_step", "the first weights are gathered earlier",
        noted=True),
    *_only("optimizer", "optimizer_cuda_graph", "the optimizer's step is a CUDA graph", noted=True),
    *_any("train", "no part of a step", "train_iters train_samples num_epochs eval_interval eval_iters"
        " exit_duration_in_mins exit_interval exit_signal exit_signal_handler exit_signal_handler_for_dataloader "
        "exit_signal_handler_for_training iterations_to_skip manual_gc_eval gpu_sniff_test_interval "
        "check_weight_hash_across_dp_replicas_interval"
        " check_optimizer_step_success skip_sync_grad_norm_across_mp skip_train"),
    *_only("train", "rampup_batch_size step_batch_size_schedule decrease_batch_size_if_needed train_sync_interval",
           _LACKS),
    *_only("train", "empty_unused_memory_level", "torch's cache is emptied in every step", noted=True),
    *_any("rng", "numbers of the random generator", "seed te_rng_tracker inference_rng_tracker"
        " data_parallel_random_init"),
    *_only("rerun_state_machine", "rerun_mode", "every step runs twice, so steps take about twice as long", "disabled",
           noted=True),
    *_only("profiling", "use_nsys_profiler use_pytorch_profiler record_memory_history", "profiled steps are slower",
        noted=True),
    *_only("dataset", "hybrid_context_parallel inter_document_masking reset_position_ids reset_attention_mask",
        "attention within documents", noted=True),
    *_only("tensor_inspect", "enabled", "tensors are copied and inspected"),
)  # fmt: skip

SECTIONS: dict[str, str] = {
    "checkpoint": "checkpoints are no part of a step",
    "comm_overlap": _COPIED,
    "dataset": "random tokens take the same memory and time",
    "env_vars": "read as variables",
    "ft": "restarts failed jobs",
    "inprocess_restart": "restarts failed jobs",
    "logger": "logs only",
    "mixed_precision": _COPIED,
    "nvrx_straggler": "watches only",
    "optimizer_config_override_provider": "constants of the optimizer by parameter",
    "profiling": "no part of a step unless it is switched on",
    "rerun_state_machine": "checks only",
    "rng": "numbers of the random generator",
    "scheduler": "the learning rate changes neither memory nor time",
    "straggler": "watches only",
    "tensor_inspect": "no part of a step unless it is switched on",
    "tokenizer": "random tokens need no tokenizer",
    "validation": "evaluation is no part of a step",
}
"""Sections that may have any further field, and why."""

KNOWN: dict[str, Known] = {row.path: row for row in (*_MODEL, *_OTHERS)}
"""By path, every field that is known and that no row of `container_fields` reads."""
