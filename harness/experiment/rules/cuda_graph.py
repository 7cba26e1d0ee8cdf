"""Rules for CUDA graphs that megatron-core refuses, that crash in capture, or that silently capture nothing."""

from harness.experiment.modules import pre_mlp_norm_stays_in_graph
from harness.experiment.rules.rule import CONFIG, ISSUES, PULLS, Rule, Situation, Values, joined, where

_MOE_SCOPES = frozenset({"moe", "moe_router", "moe_preprocess"})


def _graphed(s: Situation) -> bool:
    return s.graph.impl != "none"


def _scoped(s: Situation) -> bool:
    return s.graph.impl in ("local", "transformer_engine")


def _scope(s: Situation) -> frozenset[str]:
    return frozenset(s.graph.scope)


def _holds(s: Situation, scope: str) -> bool:
    return not s.graph.scope or s.graphs_iteration or scope in s.graph.scope


def _preprocess_syncs(s: Situation) -> bool:
    return (
        _captures(s, "moe_preprocess")
        and s.dispatcher == "alltoall"
        and s.is_dropless
        and s.spec.kernels.moe_expert_capacity_factor is not None
    )


def _captures(s: Situation, part: str) -> bool:
    """Return whether a scope captures this part of an MoE layer: local graphs set router and preprocessing together."""
    both = {"moe_router", "moe_preprocess"}
    return not _scope(s).isdisjoint(both if s.graph.impl == "local" and part in both else {part})


def _hidden_dropout_in_graph(s: Situation) -> bool:
    graphed = [part for part in ("mlp", "moe") if part in s.modules and _holds(s, part)]
    return s.spec.model.hidden_dropout > 0 and bool(graphed)


def _overlap_with_graphs(s: Situation) -> bool:
    """Releases before 0.18 allow transformer_engine graphs only; the scopes are forbidden in all of them."""
    if s.graph.impl == "transformer_engine":
        return s.overlaps_experts and not _scope(s).isdisjoint({"moe", "mlp"})
    return s.overlaps_experts and s.mcore_before("0.18")


def _iteration_by_transformer_engine(s: Situation) -> Values | None:
    if s.graph.impl != "transformer_engine" or "full_iteration" not in s.graph.scope:
        return None
    older = "To use full iteration cuda graph, please use cuda_graph_impl=local instead of cuda_graph_impl="
    newer = "cuda_graph_modules='full_iteration' cannot be combined"
    return {"mcore": f"{older}transformer_engine." if s.mcore_before("0.18") else newer}


def _checkpoints(s: Situation, impl: str, *, quantized_only: bool = False) -> list[str]:
    """List the checkpoints that graphs of ``impl`` capture; ``quantized_only``: only transformer-engine's."""
    if s.graph.impl != impl:
        return []
    reaching = [m for m in s.captured_checkpoints if not (m == "moe" and impl == "local")]
    return [m for m in reaching if s.quantized and m != "core_attn"] if quantized_only else reaching


def _te_warms_up_with_grad(s: Situation) -> Values | None:
    captured = _checkpoints(s, "transformer_engine", quantized_only=not s.mcore_before("0.18"))
    return joined(named=captured) if s.te_before("2.12") else None


def _lost_norm_checkpoint(s: Situation) -> bool:
    """The node of the experts looks for the checkpoint of a pre-MLP norm that no replayed step makes."""
    recomputed = "layernorm" in s.modules and not pre_mlp_norm_stays_in_graph(s.spec)
    return recomputed and s.overlaps_experts and s.graph.impl == "transformer_engine"


def _local_attn(s: Situation) -> bool:
    return s.graphs_locally and "attn" in s.graph.scope


RULES = (
    Rule("G05", "error",
         lambda s: s.graph.impl != "none" and s.spec.offload.cpu_offloading_num_layers > 0
         and (s.mcore_before("0.18") or not s.graphs_iteration),
         "CUDA graphs do not work with offloading of layers (cpu_offloading_num_layers)",
         "drop one of the two",
         f"{CONFIG}:1722", "run", "CUDA graphs not supported with CPU offloading."),
    Rule("G06", "error", _iteration_by_transformer_engine,
         "cuda_graph_impl transformer_engine cannot capture a whole iteration",
         "use --cuda_graph_impl full_iteration",
         f"{CONFIG}:1738", "run", "{mcore}"),
    Rule("G07", "error", where(_scoped, lambda s: "moe" in _scope(s) and _captures(s, "moe_router")),
         "cuda_graph_scope holds both moe and moe_router",
         "keep one of the two",
         f"{CONFIG}:1743", "run", "must not contain both moe and moe_router."),
    Rule("G08", "error",
         lambda s: s.graph.impl == "transformer_engine" and "moe_preprocess" in s.graph.scope
         and "moe_router" not in s.graph.scope,
         "cuda_graph_scope moe_preprocess needs moe_router",
         "add moe_router",
         f"{CONFIG}:1747", "run", "moe_preprocess cuda graph is only supported with"),
    Rule("G09", "error",
         where(_scoped, lambda s: s.moe is None and not _scope(s).isdisjoint(_MOE_SCOPES)),
         "cuda_graph_scope names MoE parts, but the model is dense",
         "drop the MoE parts from --cuda_graph_scope",
         f"{CONFIG}:1751", "run", "moe cuda graph is only supported for MoE."),
    Rule("G10", "error", where(_scoped, lambda s: "mlp" in s.graph.scope and s.moe is not None
         and 0 not in s.spec.model.moe_layer_pattern),
         "cuda_graph_scope mlp captures dense layers, but this model has only MoE layers",
         "drop mlp",
         f"{CONFIG}:1757", "run", "mlp cuda graph is only supported for dense"),
    Rule("G11", "error", where(_scoped, lambda s: "moe" in s.graph.scope and s.is_dropless),
         "cuda_graph_scope moe needs token counts that do not depend on the data",
         "set moe_expert_capacity_factor and moe_pad_expert_input_to_capacity, or use moe_router",
         f"{CONFIG}:1764", "run", "moe cuda graph is only supported with drop-padding MoE."),
    Rule("G12", "error", where(_scoped, _preprocess_syncs),
         "cuda_graph_scope moe_preprocess with a capacity factor needs padding",
         "set moe_pad_expert_input_to_capacity, or drop moe_preprocess (with local graphs moe_router, too)",
         f"{CONFIG}:1771", "run", "moe_preprocess cuda graph is not supported when"),
    Rule("G14", "error",
         lambda s: s.graph.impl == "transformer_engine" and "moe" in s.modules and "moe_router" in s.graph.scope,
         "moe recompute does not work with the moe_router scope: it would run the captured router again",
         "drop moe, or the moe_router scope",
         f"{CONFIG}:1788", "run", "moe recompute is not supported with moe_router"),
    Rule("G15", "error",
         where(_graphed, lambda s: s.spec.model.attention_dropout > 0
               and "core_attn" in s.modules and _holds(s, "attn")),
         "core_attn recompute inside a graph cannot replay attention_dropout {s.spec.model.attention_dropout}",
         "use model.attention_dropout=0, or drop core_attn",
         f"{CONFIG}:1805", "run", "attention dropout is not supported with graphed attention recomputation."),
    Rule("G16", "error", where(_graphed, _hidden_dropout_in_graph),
         "mlp and moe recompute inside a graph cannot replay hidden_dropout {s.spec.model.hidden_dropout}",
         "use model.hidden_dropout=0, or drop the modules",
         f"{CONFIG}:1812", "run", "hidden dropout is not supported with graphed"),
    Rule("G18", "error", where(_graphed, _overlap_with_graphs),
         "overlap_moe_expert_parallel_comm allows only transformer_engine graphs of attention and router",
         "use --cuda_graph_impl transformer_engine --cuda_graph_scope attn, or drop the overlap",
         f"{CONFIG}:1898", "run", "CUDA graph scope on moe and mlp is not supported"),
    Rule("G20", "error", lambda s: s.graph.impl == "full_iteration" and bool(s.graph.scope),
         "cuda_graph_impl full_iteration has no scopes",
         "drop --cuda_graph_scope",
         f"Megatron-LM main {CONFIG}:2794", "source",
         'cuda_graph_modules must be empty when cuda_graph_impl="full_iteration".'),
    Rule("G21", "error", lambda s: joined(named=_checkpoints(s, "local")),
         "{named}: local graphs cannot capture a layer with a checkpoint",
         "drop the graphs or the modules, or use megatron-core 0.18",
         f"transformer/cuda_graphs.py:924; {ISSUES}/2758", "issue",
         "Checkpointing is not compatible with .grad()", until="0.18"),
    Rule("G22", "error", _te_warms_up_with_grad,
         "{named}: transformer-engine {s.software.transformer_engine} cannot capture a layer with a checkpoint",
         "use transformer-engine 2.12, or a scope without these modules",
         "transformer_engine/pytorch/graph.py; https://github.com/NVIDIA/TransformerEngine/pull/2518", "source",
         "Checkpointing is not compatible with .grad()"),
    Rule("G24", "error", lambda s: joined(named=_checkpoints(s, "local", quantized_only=True)),
         "{named} under {s.spec.compute_dtype}: local graphs cannot capture a layer with a checkpoint",
         "drop the graphs or the modules",
         f"Megatron-LM main {CONFIG}:2908", "source", "but the local fwd-graph warmup uses .grad().", since="0.18"),
    Rule("G25", "error", lambda s: joined(named=s.discarding if s.graphs_locally else ()),
         "{named}: megatron-core {s.mcore_name} switches it off once local graphs are captured",
         "use megatron-core 0.17, or no local graphs",
         f"transformer/cuda_graphs.py:112; {PULLS}/3373", "source", until="0.17"),
    Rule("G26", "error",
         lambda s: s.full is not None and s.graphs_iteration
         and max(s.spec.model.attention_dropout, s.spec.model.hidden_dropout) > 0,
         "full recompute inside a captured iteration draws other dropout masks than the forward pass",
         "use model.attention_dropout=0 and model.hidden_dropout=0",
         f"{PULLS}/6661", "issue"),
    Rule("G27", "error", where(_graphed, lambda s: s.is_dropless and (s.graphs_iteration or not s.graph.scope)),
         "dropless MoE layers synchronise with the host, which breaks the capture",
         "set moe_expert_capacity_factor and moe_pad_expert_input_to_capacity, or use a scope of attn and moe_router",
         "transformer/moe/token_dispatcher.py:871", "source"),
    Rule("G28", "warning", lambda s: "layernorm" in s.modules and pre_mlp_norm_stays_in_graph(s.spec),
         "the pre-MLP norm is not recomputed: the router graph keeps its output",
         "add moe_preprocess to the scope, use the alltoall dispatcher, and drop moe_shared_expert_overlap",
         "transformer_layer.py:389", "source", "Disabling pre_mlp_layernorm recompute."),
    Rule("G29", "error", lambda s: s.graphs_locally and "mlp" in s.graph.scope and "attn" not in s.graph.scope,
         "megatron-core fails to build the model with local graphs of mlp",
         "use --cuda_graph_impl transformer_engine",
         f"transformer_layer.py:480; {PULLS}/6167", "run", "'TransformerLayer' object has no attribute 'is_moe_layer'"),
    Rule("G30", "error", lambda s: _local_attn(s) and s.is_dropless,
         "local scope attn captures whole layers, and dropless MoE layers cannot be captured",
         "use --cuda_graph_impl transformer_engine",
         f"transformer_layer.py:473; {ISSUES}/1598", "source"),
    Rule("G30", "warning", lambda s: _local_attn(s) and not s.is_dropless,
         "local scope attn captures the whole layer, not the attention",
         "use --cuda_graph_impl transformer_engine for the attention alone",
         "transformer_layer.py:473", "run"),
    Rule("G31", "error", lambda s: s.graphs_locally and bool(s.graph.scope) and _scope(s) <= _MOE_SCOPES,
         "local graphs of MoE parts capture nothing and switch moe recompute off",
         "use --cuda_graph_impl transformer_engine",
         "transformer_layer.py:473", "run"),
    Rule("G33", "warning", lambda s: s.graph.impl == "none" and bool(s.graph.scope),
         "cuda_graph_scope without cuda_graph_impl has no effect",
         "set --cuda_graph_impl, or drop the scope",
         f"{CONFIG}:1670", "source"),
    Rule("G34", "error", lambda s: "full_iteration" in s.graph.scope and len(_scope(s)) > 1,
         "cuda_graph_scope full_iteration excludes every part",
         "use it alone, or drop it",
         "Megatron-Bridge scripts/performance/utils/overrides.py at 067f987", "harness"),
    Rule("G35", "error", _lost_norm_checkpoint,
         "layernorm recompute fails in the first replayed step with overlap_moe_expert_parallel_comm",
         "drop layernorm, the graphs, or the overlap",
         "models/gpt/fine_grained_callables.py:537", "run", "'NoneType' object is not iterable"),
)  # fmt: skip
