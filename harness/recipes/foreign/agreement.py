"""Where two experiments differ in effect: values that megatron-core treats alike are equal."""

from dataclasses import dataclass

from harness.experiment.effective import captures_iteration
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.layout import parse_layout
from harness.experiment.recompute import canonical_text
from harness.recipes.foreign.container_fields import NOT_IN_CONTAINERS
from harness.recipes.settings import LEAVES, SECTION_MODELS


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
        if path in NOT_IN_CONTAINERS or path == "env" or (section in SECTION_MODELS and _at(spec, section) is None):
            continue
        values[path] = _at(spec, path)
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
    if not model.mtp_num_layers:
        values["model.mtp_loss_scaling_factor"] = None
    return values


def _of_cut(spec: ExperimentSpec) -> dict[str, object]:
    cut, ddp = spec.parallelism, spec.ddp
    text = cut.pipeline_model_parallel_layout
    return {
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
        "kernels.transformer_impl": _settled(kernels.transformer_impl, "transformer_engine"),
        "cuda_graph.impl": "full_iteration" if whole_step else graph.impl,
        "cuda_graph.scope": () if whole_step or graph.impl == "none" else tuple(sorted(graph.scope)),
    }
    if spec.model.moe and kernels.moe_token_dispatcher_type != "flex":  # noqa: S105 (a dispatcher of tokens)
        values["kernels.moe_flex_dispatcher_backend"] = None
    if not kernels.cross_entropy_loss_fusion:
        values["kernels.cross_entropy_fusion_impl"] = None
    return values


def _settled(value: str, on_gpu: str) -> str:
    return on_gpu if value == "auto" else value


def _at(spec: ExperimentSpec, path: str) -> object:
    value: object = spec
    for name in path.split("."):
        value = getattr(value, name)
        if value is None:
            break
    return value
