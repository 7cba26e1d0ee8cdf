"""Maps settings of a Megatron-Bridge `ConfigContainer` to leaves of an ExperimentSpec."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.errors import Problems
from harness.experiment.effective import captures_iteration
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.layout_text import parse_layout
from harness.experiment.recompute import SelectiveRecompute, canonical_text
from harness.foreign.container_file import Container, flat
from harness.foreign.container_values import (
    cpu_offloading_layers,
    deferral_limit,
    dtype,
    environment,
    graph_modules,
    implementation,
    layout,
    offloaded_modules,
    precision,
    recompute,
    rope_scaling_factor,
    router_dtype,
    short_name,
    user_buffers,
    whole_number,
    world_size,
)
from harness.resolve.recipe import LEAVES, SECTION_MODELS, Layer, Setting, Value, at_path

Read = Callable[[Container, str], Value]


def as_written(container: Container, path: str) -> Value:
    """Return the value of the file; both sides spell it the same way."""
    return container.value(path)


@dataclass(frozen=True)
class Field:
    """One leaf of an ExperimentSpec, the container's paths for it (the first with a value counts), and its reader.

    A row without paths reads several settings of the file. The row applies only if the setting ``only`` is truthy,
    because Bridge writes defaults of parts that the model does not have.
    """

    path: str
    names: tuple[str, ...]
    read: Read = as_written
    only: str | None = None


def _alike(section: str, theirs: str, names: str, *, only: str | None = None) -> Iterator[Field]:
    """Yield rows of settings that have the same name on both sides, in sections of different names."""
    for name in names.split():
        yield Field(f"{section}.{name}", (f"{theirs}.{name}",), only=only)


_MOE = "model.num_moe_experts"
_MLA = "model.multi_latent_attention"
_YARN = "model.yarn_rotary_scaling_factor"
_LINEAR_ATTENTION = "model.experimental_attention_variant"

FIELDS: tuple[Field, ...] = (
    Field("compute_dtype", ("model.bf16",), precision),
    Field("num_gpus", ("comm_overlap.data_parallel_size",), world_size),
    *_alike("model", "model",
            "num_layers hidden_size ffn_hidden_size num_attention_heads num_query_groups kv_channels "
            "make_vocab_size_divisible_by share_embeddings_and_output_weights gated_linear_unit add_bias_linear "
            "normalization layernorm_epsilon layernorm_zero_centered_gamma qk_layernorm position_embedding_type "
            "add_qkv_bias attention_output_gate softmax_type window_size window_attn_skip_freq glu_linear_offset "
            "activation_func_clamp_value rotary_percent attention_dropout hidden_dropout mtp_num_layers "
            "mtp_loss_scaling_factor"),
    Field("model.vocab_size", ("model.vocab_size", "tokenizer.vocab_size")),
    Field("model.rotary_base", ("model.rotary_base",), whole_number),
    Field("model.activation_func", ("model.activation_func",), short_name),
    Field("model.rope_scaling_factor", ("model.rope_scaling_factor",), rope_scaling_factor),
    *_alike("model.moe", "model",
            "num_moe_experts moe_router_topk moe_ffn_hidden_size moe_layer_freq moe_shared_expert_intermediate_size "
            "moe_shared_expert_gate moe_router_load_balancing_type moe_aux_loss_coeff moe_router_pre_softmax "
            "moe_router_score_function moe_router_num_groups moe_router_group_topk moe_router_topk_scaling_factor "
            "moe_router_enable_expert_bias"
            " moe_router_bias_update_rate moe_router_force_load_balancing moe_grouped_gemm", only=_MOE),
    Field("model.moe.moe_router_dtype", ("model.moe_router_dtype",), router_dtype, only=_MOE),
    *_alike("model.mla", "model",
            "q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim rope_type rotary_scaling_factor"
            " original_max_position_embeddings mscale mscale_all_dim apply_rope_fusion", only=_MLA),
    *_alike("model.yarn", "model",
            "yarn_rotary_scaling_factor yarn_original_max_position_embeddings yarn_beta_fast yarn_beta_slow yarn_mscale"
            " yarn_mscale_all_dim yarn_correction_range_round_to_int", only=_YARN),
    *_alike("model.linear_attention", "model",
            "linear_attention_freq linear_conv_kernel_dim linear_key_head_dim linear_value_head_dim"
            " linear_num_key_heads linear_num_value_heads", only=_LINEAR_ATTENTION),
    *_alike("parallelism", "model",
            "tensor_model_parallel_size pipeline_model_parallel_size virtual_pipeline_model_parallel_size "
            "context_parallel_size expert_model_parallel_size sequence_parallel "
            "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split "
            "num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage microbatch_group_size_per_vp_stage"
            " defer_embedding_wgrad_compute deallocate_pipeline_outputs"),
    Field("parallelism.expert_tensor_parallel_size", ("model.expert_tensor_parallel_size",), only=_MOE),
    Field("parallelism.pipeline_model_parallel_layout", ("model.pipeline_model_parallel_layout",), layout),
    Field("parallelism.wgrad_deferral_limit", ("model.wgrad_deferral_limit",), deferral_limit),
    *_alike("batch", "train", "micro_batch_size global_batch_size"),
    Field("batch.seq_length", ("model.seq_length", "dataset.seq_length")),
    Field("recompute", ("model.recompute_granularity",), recompute),
    *_alike("optimizer", "optimizer",
            "use_distributed_optimizer use_precision_aware_optimizer lr weight_decay clip_grad"),
    Field("optimizer.main_params_dtype", ("optimizer.main_params_dtype",), dtype),
    Field("optimizer.main_grads_dtype", ("optimizer.main_grads_dtype",), dtype),
    Field("optimizer.exp_avg_dtype", ("optimizer.exp_avg_dtype",), dtype),
    Field("optimizer.exp_avg_sq_dtype", ("optimizer.exp_avg_sq_dtype",), dtype),
    *_alike("ddp", "ddp",
            "grad_reduce_in_fp32 overlap_grad_reduce overlap_param_gather align_param_gather bucket_size"
            " average_in_collective nccl_ub use_megatron_fsdp"),
    Field("ddp.align_grad_reduce", ("dist.align_grad_reduce",)),
    Field("offload.cpu_offloading_num_layers", ("model.cpu_offloading_num_layers",), cpu_offloading_layers),
    Field("offload.offload_modules", ("model.offload_modules",), offloaded_modules),
    Field("cuda_graph.impl", ("model.cuda_graph_impl",), implementation),
    Field("cuda_graph.scope", ("model.cuda_graph_modules", "model.cuda_graph_scope"), graph_modules),
    Field("cuda_graph.warmup_steps", ("model.cuda_graph_warmup_steps",)),
    *_alike("kernels", "model",
            "transformer_impl gradient_accumulation_fusion bias_activation_fusion cross_entropy_loss_fusion "
            "cross_entropy_fusion_impl"
            " tp_comm_overlap overlap_moe_expert_parallel_comm"),
    Field("kernels.attention_backend", ("model.attention_backend",), implementation),
    Field("kernels.tp_comm_overlap_cfg", ("comm_overlap.tp_comm_overlap_cfg",), user_buffers),
    *_alike("kernels", "model",
            "moe_token_dispatcher_type moe_flex_dispatcher_backend moe_permute_fusion moe_shared_expert_overlap"
            " moe_expert_capacity_factor moe_pad_expert_input_to_capacity", only=_MOE),
    Field("env", ("env_vars",), environment),
    *_alike("train", "train", "manual_gc manual_gc_interval"),
)  # fmt: skip

NOT_IN_CONTAINERS = frozenset(
    {"recipe", "family", "task", "gpu", "gpus_per_node", "engine"}
    | {path for path in LEAVES if path.startswith("measure.")}
)
"""Leaves of an ExperimentSpec that no row reads: names, hardware, who trains, and how mbr-perf measures."""


def container_layer(container: Container) -> Layer:
    """Read every setting of the table of fields. A null, or a setting that the file's version lacks, sets nothing.

    The source of a setting is ``FILE:LINE: model.num_layers``. Raises BadRequestError with the ``file:line`` of every
    value that has no counterpart here.
    """
    problems = Problems()
    settings = readable_layer(container, problems)
    problems.raise_if_any()
    return settings


def readable_layer(container: Container, problems: Problems) -> Layer:
    """Read every setting that has a counterpart here; the others are among ``problems``."""
    settings: dict[str, Setting] = {}
    for row in FIELDS:
        with problems.collecting():
            settings |= _field_settings(row, container)
    return settings


def _field_settings(row: Field, container: Container) -> Layer:
    found = container.find(*row.names)
    if found is None or (row.only is not None and not container.value(row.only)):
        return {}
    value = row.read(container, found.path)
    if row.path == "env" and isinstance(value, dict):
        return {f"env.{name}": Setting(each, container.place(f"env_vars.{name}")) for name, each in value.items()}
    name = "model.recompute_modules" if isinstance(value, SelectiveRecompute) else flat(found.path)
    return {} if value is None else {row.path: Setting(value, container.place(name))}


@dataclass(frozen=True)
class Disagreement:
    """One leaf that differs: its path (``env.NAME`` for a variable), our value and theirs."""

    path: str
    ours: object
    theirs: object


def disagreements(ours: ExperimentSpec, theirs: ExperimentSpec) -> tuple[Disagreement, ...]:
    """List the leaves whose effect differs, in the order of the spec, without those that a container cannot hold."""
    left, right = effective_values(ours), effective_values(theirs)
    return tuple(
        Disagreement(path, left.get(path), right.get(path))
        for path in dict.fromkeys((*left, *right))
        if left.get(path) != right.get(path)
    )


def effective_values(spec: ExperimentSpec) -> dict[str, object]:
    """Map each leaf's path to what megatron-core uses: null group counts, `auto` and the like are replaced."""
    values: dict[str, object] = {f"env.{name}": value for name, value in spec.env.items()}
    for path in LEAVES:
        section = path.rpartition(".")[0]
        if path in NOT_IN_CONTAINERS or path == "env" or (section in SECTION_MODELS and at_path(spec, section) is None):
            continue
        values[path] = at_path(spec, path)
    return values | _of_model(spec) | _of_cut(spec) | _of_kernels(spec)


def _of_model(spec: ExperimentSpec) -> dict[str, object]:
    model, tensor_parallel = spec.model, spec.parallelism.tensor_model_parallel_size
    values: dict[str, object] = {
        "model.num_query_groups": None if model.mla else model.query_groups,
        "model.kv_channels": None if model.mla else model.head_dim,
        "model.make_vocab_size_divisible_by": f"{model.padded_vocab_size(tensor_parallel)} padded",
        "recompute": canonical_text(spec.recompute),
    }
    if model.moe:
        values["model.moe.moe_layer_freq"] = model.moe_layer_pattern
    if model.window_size:
        values["model.window_attn_skip_freq"] = model.window_pattern
    if model.linear_attention:
        values["model.linear_attention.linear_attention_freq"] = model.linear_attention_pattern
    if not model.mtp_num_layers:
        values["model.mtp_loss_scaling_factor"] = None
    return values


def _of_cut(spec: ExperimentSpec) -> dict[str, object]:
    cut, ddp = spec.parallelism, spec.ddp
    text = cut.pipeline_model_parallel_layout
    return {
        "parallelism.deallocate_pipeline_outputs": cut.deallocate_pipeline_outputs
        or cut.pipeline_model_parallel_size == 1,
        "parallelism.expert_tensor_parallel_size": cut.expert_tensor_size if spec.model.moe else None,
        "parallelism.virtual_pipeline_model_parallel_size": cut.num_virtual_stages,
        "parallelism.microbatch_group_size_per_vp_stage": cut.microbatch_group_size_per_vp_stage
        or cut.pipeline_model_parallel_size,
        "parallelism.pipeline_model_parallel_layout": None if text is None else parse_layout(text),
        "ddp.align_grad_reduce": ddp.align_grad_reduce and ddp.overlap_grad_reduce,
        "ddp.align_param_gather": ddp.align_param_gather and ddp.overlap_param_gather,
        "ddp.bucket_size": ddp.bucket_size if ddp.overlap_grad_reduce else None,
    }


def _of_kernels(spec: ExperimentSpec) -> dict[str, object]:
    kernels, graph = spec.kernels, spec.cuda_graph
    whole_step = captures_iteration(graph)
    values: dict[str, object] = {
        "kernels.transformer_impl": "transformer_engine"
        if kernels.transformer_impl == "auto"
        else kernels.transformer_impl,
        "cuda_graph.impl": "full_iteration" if whole_step else graph.impl,
        "cuda_graph.scope": () if whole_step or graph.impl == "none" else tuple(sorted(graph.scope)),
    }
    if spec.model.moe and not kernels.has_flex_dispatcher:
        values["kernels.moe_flex_dispatcher_backend"] = None
    if not kernels.cross_entropy_loss_fusion:
        values["kernels.cross_entropy_fusion_impl"] = None
    return values
