"""Reads settings of a Megatron-Bridge `ConfigContainer`, and compares two experiments as a container states them."""

from harness.experiment.effective import captures_iteration
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.layout_text import parse_layout
from harness.experiment.recompute import canonical_text
from harness.resolve.recipe import LEAVES, SECTION_MODELS, at_path

NOT_IN_CONTAINERS = frozenset(
    {"recipe", "family", "task", "gpu", "gpus_per_node", "engine"}
    | {path for path in LEAVES if path.startswith("measure.")}
)
"""Leaves of an ExperimentSpec that no row reads: names, hardware, who trains, and how mbr-perf measures."""


def other_effects(ours: ExperimentSpec, theirs: ExperimentSpec) -> dict[str, tuple[object, object]]:
    """Return our value and theirs of each leaf of a container whose effect differs, in the order of the spec."""
    left, right = effective_values(ours), effective_values(theirs)
    return {path: (left.get(path), right.get(path)) for path in left | right if left.get(path) != right.get(path)}


def effective_values(spec: ExperimentSpec) -> dict[str, object]:
    """Map each leaf's path to what megatron-core uses: null group counts, `auto` and the like are replaced."""
    values: dict[str, object] = {f"env.{name}": value for name, value in spec.env.items()}
    for path in LEAVES:
        section = path.rpartition(".")[0]
        if path in NOT_IN_CONTAINERS or path == "env" or (section in SECTION_MODELS and at_path(spec, section) is None):
            continue
        values[path] = at_path(spec, path)
    return values | {path: value for path, value in _used(spec).items() if path in values}


def _used(spec: ExperimentSpec) -> dict[str, object]:
    model, cut, ddp, kernels, graph = spec.model, spec.parallelism, spec.ddp, spec.kernels, spec.cuda_graph
    layout, whole_step = cut.pipeline_model_parallel_layout, captures_iteration(graph)
    impl = kernels.transformer_impl
    return _of_parts(spec) | {
        "model.num_query_groups": None if model.mla else model.query_groups,
        "model.kv_channels": None if model.mla else model.head_dim,
        "model.make_vocab_size_divisible_by": f"{model.padded_vocab_size(cut.tensor_model_parallel_size)} padded",
        "model.moe.moe_layer_freq": model.moe_layer_pattern,
        "model.linear_attention.linear_attention_freq": model.linear_attention_pattern,
        "model.mtp_loss_scaling_factor": model.mtp_loss_scaling_factor if model.mtp_num_layers else None,
        "recompute": canonical_text(spec.recompute),
        "parallelism.deallocate_pipeline_outputs": cut.deallocate_pipeline_outputs
        or cut.pipeline_model_parallel_size == 1,
        "parallelism.expert_tensor_parallel_size": cut.expert_tensor_size if model.moe else None,
        "parallelism.virtual_pipeline_model_parallel_size": cut.num_virtual_stages,
        "parallelism.microbatch_group_size_per_vp_stage": cut.microbatch_group_size_per_vp_stage
        or cut.pipeline_model_parallel_size,
        "parallelism.pipeline_model_parallel_layout": None if layout is None else parse_layout(layout),
        "ddp.align_grad_reduce": ddp.align_grad_reduce and ddp.overlap_grad_reduce,
        "ddp.align_param_gather": ddp.align_param_gather and ddp.overlap_param_gather,
        "ddp.bucket_size": ddp.bucket_size if ddp.overlap_grad_reduce else None,
        "kernels.transformer_impl": "transformer_engine" if impl == "auto" else impl,
        "cuda_graph.impl": "full_iteration" if whole_step else graph.impl,
        "cuda_graph.scope": () if whole_step or graph.impl == "none" else tuple(sorted(graph.scope)),
    }


def _of_parts(spec: ExperimentSpec) -> dict[str, object]:
    found: dict[str, object] = (
        {"model.window_attn_skip_freq": spec.model.window_pattern} if spec.model.window_size else {}
    )
    if spec.parallelism.context_parallel_size == 1:
        found["parallelism.cp_comm_type"] = None
    if spec.model.no_rope_freq is not None:
        found["model.no_rope_freq"] = spec.model.no_rope_pattern
    if spec.model.moe and not spec.kernels.has_flex_dispatcher:
        found["kernels.moe_flex_dispatcher_backend"] = None
    return found if spec.kernels.cross_entropy_loss_fusion else found | {"kernels.cross_entropy_fusion_impl": None}
