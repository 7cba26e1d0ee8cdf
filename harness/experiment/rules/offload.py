"""Rules for activations in host memory: whole layers and named modules."""

from harness.experiment.rules.rule import CONFIG, Rule, Situation, Values, joined

# What megatron-core 0.16 can offload by name.
OFFLOADABLE = ("core_attn", "attn_proj", "expert_fc1", "moe_act", "attn_norm", "mlp_norm", "qkv_linear")
_INSIDE_EXPERTS = frozenset({"moe_act", "expert_fc1", "fused_group_mlp"})


def _offloads_layers(s: Situation) -> bool:
    return s.spec.offload.cpu_offloading_num_layers > 0


def _named(s: Situation) -> frozenset[str]:
    return frozenset(s.spec.offload.offload_modules)


def _unknown(s: Situation) -> Values | None:
    known = set(OFFLOADABLE)
    if not s.mcore_before("0.19"):
        known.add("fused_group_mlp")
    if not s.mcore_before("0.20.0dev0"):
        known.add("gdp_qkv")
    unknown = sorted(_named(s) - known)
    if not unknown:
        return None
    listed = "{" + ", ".join(map(repr, unknown)) + "}"
    return {"unknown": ", ".join(unknown), "known": ", ".join(sorted(known)), "listed": listed}


def _inside_recomputed_experts(s: Situation) -> Values | None:
    inside = sorted(_named(s) & _INSIDE_EXPERTS)
    if not inside or "moe" not in s.modules:
        return None
    text = f"Cannot offload {{{', '.join(map(repr, inside))}}} while recomputing the entire MoE layer."
    return {"inside": ", ".join(inside), "mcore": "" if s.mcore_before("0.19") else text}


def _absent_parts(s: Situation) -> Values | None:
    """Name parts that no layer of the model has, from the wiring of the transformer_engine layer spec."""
    present = set(OFFLOADABLE) | {"fused_group_mlp", "gdp_qkv"}
    if s.moe is None:
        present -= {"expert_fc1", "moe_act", "mlp_norm"}
    if s.spec.model.mla is None:
        present.discard("attn_norm")
    absent = sorted(_named(s) - present)
    return joined(absent=absent) if s.uses_te else None


def _graph_offload_conflict(s: Situation) -> Values | None:
    """Return the first refusal of megatron-core from 0.18 on, in its order."""
    if not s.spec.offload.offload_modules or s.graph.impl == "none":
        return None
    if s.graphs_locally and (refused := _local_graph_offload_conflict(s)):
        return refused
    if "moe" in s.graph.scope:
        text = "Token-drop MoE is temporarily not supported with activation offloading."
        return {"why": "the moe scope captures the modules to offload", "mcore": text}
    if s.graph.warmup_steps == 0:
        text = "cuda_graph_warmup_steps must be greater than 0"
        return {"why": "cuda_graph.warmup_steps is 0", "mcore": text}
    if s.graphs_iteration:
        must = "a non-negative integer" if s.mcore_before("0.20.0dev0") else "set"
        text = (
            f"fine_grained_offloading_max_inflight_offloads must be {must} when using fine-grained activation "
            "offloading with full-iteration CUDA graphs"
        )
        return {"why": "a captured iteration needs a limit that mbr-perf does not set", "mcore": text}
    return None


def _local_graph_offload_conflict(s: Situation) -> Values | None:
    """Return the refusal. Before 0.19 no module is allowed; later, modules in experts outside captured layers."""
    if s.mcore_before("0.19"):
        text = "fine-grained activation offloading is only supported with transformer_engine CUDA graph"
        return {"why": f"megatron-core {s.mcore_name} offloads with transformer_engine graphs only", "mcore": text}
    outside = sorted(_named(s) - _INSIDE_EXPERTS)
    if outside:
        text = (
            "fine-grained activation offloading with cuda_graph_impl='local' only supports offload_modules "
            f"'expert_fc1', 'moe_act', and 'fused_group_mlp'. Unsupported offload_modules: {outside}."
        )
        return {"why": f"local graphs do not allow {', '.join(outside)}", "mcore": text}
    if not s.graph.scope:
        text = "cuda_graph_impl='local' is not supported with whole-layer CUDA graph"
        return {"why": "whole layers are captured", "mcore": text}
    return None


RULES = (
    Rule("R16", "error", lambda s: _offloads_layers(s) and s.spec.recompute.granularity != "none",
         "cpu_offloading_num_layers {s.spec.offload.cpu_offloading_num_layers} does not work with recompute "
         "{s.spec.recompute.text}",
         "use one of the two, or name modules in offload.offload_modules",
         f"{CONFIG}:1149", "run", "CPU offloading does not work when activation recomputation is enabled"),
    Rule("R17", "error", lambda s: s.spec.offload.cpu_offloading_num_layers >= s.spec.model.num_layers,
         "cpu_offloading_num_layers {s.spec.offload.cpu_offloading_num_layers} must be less than num_layers "
         "{s.spec.model.num_layers}",
         "leave at least one layer on the device",
         f"{CONFIG}:1137", "run", "CPU offloading can be done only for layers less than"),
    Rule("R18", "error", lambda s: _offloads_layers(s) and s.pp > 1,
         "offloading of layers does not work with pipeline parallelism; PP is {s.pp}",
         "use -pp 1, or name modules in offload.offload_modules",
         f"{CONFIG}:1144", "run", "no support for Pipeline parallelism with CPU offloading"),
    Rule("R19", "error", lambda s: _offloads_layers(s) and s.te_is_missing and not s.gpu.is_cpu,
         "offloading of layers needs transformer-engine, and none is installed",
         "install transformer-engine",
         "transformer_block.py:317", "source", "CPU Offloading is enabled when TE is not present"),
    Rule("F01", "error", lambda s: _offloads_layers(s) and bool(s.spec.offload.offload_modules),
         "offloading of layers and of modules exclude each other",
         "keep one of cpu_offloading_num_layers and offload_modules",
         f"{CONFIG}:1268", "run", "fine_grained_activation_offloading cannot be enabled with cpu_offloading."),
    Rule("F03", "error", _unknown,
         "offload_modules {unknown}: megatron-core {s.mcore_name} has no such module",
         "known: {known}",
         f"{CONFIG}:1273", "run", "Invalid choices for offload_modules: {listed}."),
    Rule("F04", "error", lambda s: "attn_proj" in _named(s) and "core_attn" not in _named(s),
         "offload_modules attn_proj needs core_attn",
         "add core_attn",
         f"{CONFIG}:1287", "run", "attn_proj cannot be set to offload_modules alone"),
    Rule("F05", "error", lambda s: bool(s.spec.offload.offload_modules) and not s.uses_te and not s.gpu.is_cpu,
         "offload_modules does not work with the local layers",
         "use kernels.transformer_impl=transformer_engine",
         "megatron/training/arguments.py at core_v0.16.1", "source",
         "Fine-grained activation offloading is only supported with"),
    Rule("F07", "warning", lambda s: "core_attn" in _named(s) and "core_attn" in s.modules,
         "core_attn is in offload_modules and recompute_modules: megatron-core only recomputes it",
         "keep one of the two",
         "transformer/attention.py:1134", "source"),
    Rule("F08", "warning", lambda s: bool(s.spec.offload.offload_modules) and s.full is not None,
         "offload_modules has no effect: full recompute stores nothing inside layers",
         "keep one of the two",
         "transformer_block.py:446", "source"),
    Rule("F09", "error", _inside_recomputed_experts,
         "{inside}: offloaded inside experts that moe recompute runs again",
         "drop moe, or do not offload {inside}",
         f"Megatron-LM main {CONFIG}:2165", "source", "{mcore}"),
    Rule("F11", "error", _graph_offload_conflict,
         "offload_modules with {s.graph.impl} CUDA graphs: {why}",
         "drop the graphs, or drop offload_modules",
         f"Megatron-LM main {CONFIG}:2930", "source", "{mcore}", since="0.18"),
    Rule("F12", "warning", _absent_parts,
         "offload_modules {absent}: no layer of this model has them as separate modules",
         "drop them",
         "transformer_layer.py:448", "source"),
)  # fmt: skip
