"""What a CUDA graph setting captures of a GPT layer (megatron-core `transformer/cuda_graphs.py`, `transformer_layer.py`)."""

from harness.experiment.experiment import CudaGraphSpec
from harness.experiment.recompute import MODULES

# Graph scopes of transformer_engine graphs that contain a recompute module. The router graph runs the shared experts.
_SCOPES_WITH = {
    "core_attn": {"attn"},
    "mla_up_proj": {"attn"},
    "layernorm": {"attn", "mlp", "moe", "moe_router"},
    "mlp": {"mlp"},
    "moe": {"moe"},
    "moe_act": {"moe"},
    "shared_experts": {"moe", "moe_router"},
}


def captures_iteration(graph: CudaGraphSpec) -> bool:
    """Whether one graph holds forward and backward of a whole step, under either of its two spellings."""
    return graph.impl == "full_iteration" or (graph.impl == "local" and "full_iteration" in graph.scope)


def is_local(graph: CudaGraphSpec) -> bool:
    """Whether megatron-core's own per-layer graphs are asked for."""
    return graph.impl == "local" and not captures_iteration(graph)


def captures_whole_layers(graph: CudaGraphSpec) -> bool:
    """Per-layer graphs with nothing of the layer left outside. A local `attn` scope on a GPT model is one of them."""
    if graph.impl == "none" or captures_iteration(graph):
        return False
    return not graph.scope or (graph.impl == "local" and "attn" in graph.scope)


def captures(graph: CudaGraphSpec, module: str) -> bool:
    """Whether a recompute module of a GPT layer lies inside a per-layer graph."""
    if captures_whole_layers(graph):
        return True
    if graph.impl != "transformer_engine":
        return False  # local scopes without `attn` capture nothing on GPT models
    return not _SCOPES_WITH.get(module, set()).isdisjoint(graph.scope)


def captured_checkpoints(graph: CudaGraphSpec, modules: tuple[str, ...]) -> tuple[str, ...]:
    """Those of ``modules`` that run through a plain checkpoint inside a per-layer graph."""
    return tuple(m for m in modules if m in MODULES and not MODULES[m].discards_output and captures(graph, m))
