"""Command-line options as the last layer of settings; an absent option adds nothing."""

import math
from typing import get_args

from harness.errors import BadRequestError
from harness.experiment.experiment import CudaGraphSpec
from harness.recipes.problems import Problems, nearest
from harness.recipes.recipe import Request
from harness.recipes.recompute_options import recompute_setting
from harness.recipes.set_values import env_settings, set_settings
from harness.recipes.settings import LEAVES, Layer, Setting, Value, merge
from harness.units import GIB

LEAF_OF_OPTION = {
    "gpus_per_node": "gpus_per_node",
    "max_steps": "measure.max_steps",
    "skip_first_percent_time": "measure.skip_first_percent_time",
    "eval_time_start_step": "measure.eval_time_start_step",
    "eval_time_end_step": "measure.eval_time_end_step",
    "seed": "measure.seed",
    "global_batch_size": "batch.global_batch_size",
    "micro_batch_size": "batch.micro_batch_size",
    "seq_length": "batch.seq_length",
    "tensor_model_parallel_size": "parallelism.tensor_model_parallel_size",
    "pipeline_model_parallel_size": "parallelism.pipeline_model_parallel_size",
    "context_parallel_size": "parallelism.context_parallel_size",
    "virtual_pipeline_model_parallel_size": "parallelism.virtual_pipeline_model_parallel_size",
    "expert_model_parallel_size": "parallelism.expert_model_parallel_size",
    "expert_tensor_parallel_size": "parallelism.expert_tensor_parallel_size",
    "activation_offload_layers": "offload.cpu_offloading_num_layers",
    "cuda_graph_impl": "cuda_graph.impl",
    "num_layers": "model.num_layers",
    "hidden_size": "model.hidden_size",
    "memory_snapshot": "measure.memory_snapshot",
    "snapshot_on_oom": "measure.snapshot_on_oom",
}
"""Options that set one leaf, by the name of the Request field, which is also the long option."""

_GRAPH_IMPLS = get_args(LEAVES["cuda_graph.impl"].annotation)
_GRAPH_SCOPES = get_args(get_args(CudaGraphSpec.model_fields["scope"].annotation)[0])


def options_layer(request: Request, problems: Problems) -> Layer:
    """What the options say; all that is wrong in them goes to ``problems``, so that the rest can still be looked at.

    ``-tp N`` also sets sequence parallelism (on for N > 1) and ``--cuda_graph_impl none`` clears the scope, as in
    Megatron-Bridge; ``--set`` wins over such a consequence, but not silently over an option of the same name.
    """
    direct = _direct(request, problems)
    with problems.collecting():
        policy = recompute_setting(request)
        direct = merge(direct, {"recompute": policy} if policy else {})
    direct = merge(direct, env_settings(request.env, problems))
    assigned = set_settings(request.set_values, problems)
    for path in sorted(set(direct) & set(assigned)):
        if direct[path].value != assigned[path].value:
            problems.add(f"{direct[path].source} contradicts {assigned[path].source}", "give one of them")
    return merge(_consequences(direct), direct, assigned)


def _direct(request: Request, problems: Problems) -> Layer:
    settings: dict[str, Setting] = {}
    for option, path in LEAF_OF_OPTION.items():
        value: Value = getattr(request, option)
        if value is not None:
            cleared = option == "virtual_pipeline_model_parallel_size" and value == "none"
            settings[path] = Setting(None if cleared else value, f"--{option}")
    with problems.collecting():
        settings.update(_memory_limit(request))
    with problems.collecting():
        settings.update(_graph_scope(request))
    if request.cuda_graph_impl is not None and request.cuda_graph_impl not in _GRAPH_IMPLS:
        problems.add(f"--cuda_graph_impl: no such value '{request.cuda_graph_impl}'",
                     nearest(request.cuda_graph_impl, _GRAPH_IMPLS))  # fmt: skip
        del settings["cuda_graph.impl"]
    return settings


def _memory_limit(request: Request) -> Layer:
    """GiB as bytes."""
    limit = request.memory_limit
    if limit is None:
        return {}
    if not (math.isfinite(limit) and round(limit * GIB) >= 1):
        raise BadRequestError(
            f"--memory_limit {limit:g} must be {'above 0' if math.isfinite(limit) else 'a finite number'}",
            remedy="GiB that each rank may use, e.g. 0.5",
        )
    return {"measure.memory_limit_bytes": Setting(round(limit * GIB), "--memory_limit")}


def _graph_scope(request: Request) -> Layer:
    if request.cuda_graph_scope is None:
        return {}
    problems = Problems()
    scope = tuple(part.strip() for part in request.cuda_graph_scope.split(",") if part.strip())
    for name in scope:
        if name not in _GRAPH_SCOPES:
            problems.add(f"--cuda_graph_scope: no such value '{name}'", nearest(name, _GRAPH_SCOPES))
    if scope and request.cuda_graph_impl == "none":
        problems.add(
            f"--cuda_graph_impl none contradicts --cuda_graph_scope {request.cuda_graph_scope}", "give one of them"
        )
    problems.raise_if_any()
    return {"cuda_graph.scope": Setting(scope, "--cuda_graph_scope")}


def _consequences(direct: Layer) -> Layer:
    settings: dict[str, Setting] = {}
    tensor = direct.get("parallelism.tensor_model_parallel_size")
    if tensor is not None and isinstance(tensor.value, int):
        settings["parallelism.sequence_parallel"] = Setting(tensor.value > 1, tensor.source)
    graph = direct.get("cuda_graph.impl")
    if graph is not None and graph.value == "none":
        settings["cuda_graph.scope"] = Setting((), graph.source)
    return settings
