"""Rules for recompute that is without effect, refused, ignored or wrong for this request."""

from math import gcd

from harness.experiment.modules import MODULES
from harness.experiment.rules.rule import CONFIG, ISSUES, PULLS, Rule, Situation, Values, has_shared_experts, joined
from harness.units import parse_version


def _nothing_in_effect(s: Situation) -> Values | None:
    effect = s.effective
    if effect is None or not effect.does_nothing:
        return None
    return {"asked": effect.recompute, "reasons": _reasons(effect.inert_modules)}


def _part_inert(s: Situation) -> Values | None:
    effect = s.effective
    if effect is None or not effect.inert_modules or not effect.modules:
        return None
    return {"active": ",".join(effect.modules), "reasons": _reasons(effect.inert_modules)}


def _reasons(inert: dict[str, str]) -> str:
    return "; ".join(f"{module}: {reason}" for module, reason in inert.items())


EFFECT = (
    Rule("EFF01", "error", _nothing_in_effect,
         "recompute {asked} has no effect ({reasons})",
         "name a module that this model has, or pass --recompute_modules none",
         "mbr-perf", "harness"),
    Rule("EFF02", "warning", _part_inert,
         "the run measures {active} only ({reasons})",
         "drop the modules without effect",
         "mbr-perf", "harness"),
)  # fmt: skip


def _unknown_modules(s: Situation) -> Values | None:
    known = [m.name for m in MODULES.values() if not s.mcore < parse_version(m.since_mcore)]
    unknown = sorted(set(s.modules) - set(known))
    listed = "{" + ", ".join(map(repr, unknown)) + "}"
    return {"unknown": ", ".join(unknown), "listed": listed, "known": ", ".join(known)} if unknown else None


def _needs_save_original_input(s: Situation) -> bool:
    """Return whether a module makes the next linear keep its unquantised input, which delayed scaling refuses."""
    return s.spec.precision.peak == "fp8" and not {"moe_act", "layernorm"}.isdisjoint(s.modules)


def _block_is_clamped(s: Situation) -> Values | None:
    if not s.full or s.full.method != "block" or not s.chunk_sizes or s.full.num_layers <= min(s.chunk_sizes):
        return None
    return {"smallest": min(s.chunk_sizes), "largest": max(s.chunk_sizes)}


def _uniform_does_not_divide(s: Situation) -> Values | None:
    if not s.full or s.full.method != "uniform" or not s.chunk_sizes:
        return None
    bad = sorted({size for size in s.chunk_sizes if size % s.full.num_layers})
    return {"bad": bad[0], "sizes": ", ".join(map(str, bad)), "common": gcd(*s.chunk_sizes)} if bad else None


def _mtp_full(s: Situation, method: str) -> bool:
    return s.full is not None and s.full.method == method and bool(s.spec.model.mtp_num_layers)


def _moves_layers(s: Situation) -> bool:
    offloads = s.spec.offload.offload_modules or s.spec.offload.cpu_offloading_num_layers
    special = s.spec.ddp.use_megatron_fsdp or s.spec.engine is not None
    return s.graph.impl != "none" or bool(offloads) or special


RULES = (
    Rule("R06", "error",
         lambda s: s.full is not None and s.full.distribute_saved_activations and s.spec.parallelism.sequence_parallel,
         "distribute_saved_activations does not work with sequence_parallel",
         "drop distribute_saved_activations",
         f"{CONFIG}:1186", "run", "distribute_saved_activations: True must be false"),
    Rule("R07", "error", _unknown_modules,
         "recompute_modules {unknown}: megatron-core {s.mcore_name} has no such module",
         "use some of {known}",
         f"{CONFIG}:1196", "run", "Invalid choices for recompute_modules: {listed}."),
    Rule("R08", "error", lambda s: "moe_act" in s.modules and not (s.moe and s.moe.moe_grouped_gemm),
         "moe_act needs experts in one grouped GEMM",
         "drop moe_act, or set model.moe.moe_grouped_gemm of a model with experts",
         f"{CONFIG}:1213", "run", "moe_act in recompute_modules is only supported"),
    Rule("R09", "error",
         lambda s: "mla_up_proj" in s.modules and s.spec.model.mla is None,
         "mla_up_proj needs multi-latent attention; this model has none",
         "drop mla_up_proj",
         f"{CONFIG}:1218", "run", "mla_up_proj in recompute_modules is only supported"),
    Rule("R10", "warning",
         lambda s: "core_attn" in s.modules and s.spec.kernels.attention_backend != "unfused",
         "core_attn with flash or fused attention computes attention twice and frees almost no memory",
         "drop core_attn, or compare it with mlp in a sweep",
         f"{CONFIG}:1224; {ISSUES}/1225", "run", "Please check that the core_attn recompute is really needed."),
    Rule("R11", "error",
         lambda s: "shared_experts" in s.modules and has_shared_experts(s) and s.spec.kernels.moe_shared_expert_overlap,
         "shared_experts cannot be recomputed while moe_shared_expert_overlap runs them beside the dispatch",
         "set kernels.moe_shared_expert_overlap=false, or drop shared_experts",
         f"{CONFIG}:1232", "run", "shared_experts recompute cannot work with --moe-shared-expert-overlap."),
    Rule("R12", "error",
         lambda s: _needs_save_original_input(s) and s.fp8_recipe == "delayed",
         "layernorm and moe_act cannot be recomputed under FP8 delayed scaling",
         "use fp8_cs, fp8_sc or fp8_mx, or drop the two modules",
         f"{CONFIG}:1241; {ISSUES}/1860", "run",
         "Delayed scaling does not support moe_act and layernorm recompute for fp8."),
    Rule("R13", "error",
         lambda s: _needs_save_original_input(s) and s.fp8_recipe != "delayed" and s.te_before("2.6.0dev0"),
         "layernorm and moe_act recompute under FP8 need transformer-engine 2.6; found {s.software.transformer_engine}",
         "upgrade transformer-engine, or drop the two modules",
         f"{CONFIG}:1248", "run", "moe_act and layernorm recompute for fp8 needs"),
    Rule("R20", "error",
         lambda s: s.full is not None and s.graph.impl != "none" and not s.graphs_iteration,
         "full recompute does not work with CUDA graphs of single layers",
         "drop the graphs, use --cuda_graph_impl full_iteration, or recompute modules instead",
         f"{CONFIG}:1780", "run", "full recompute is only supported with full iteration CUDA graph."),
    Rule("R21", "error",
         lambda s: s.full is not None and s.overlaps_experts,
         "full recompute does not work with overlap_moe_expert_parallel_comm",
         "recompute modules of the attention instead, or drop the overlap",
         f"{CONFIG}:1871; {ISSUES}/5869", "run", "disable full recomputation when enabling overlap_moe"),
    Rule("R22", "error",
         lambda s: "moe" in s.modules and s.overlaps_experts,
         "moe recompute has no effect with overlap_moe_expert_parallel_comm",
         "drop moe, or drop the overlap",
         "models/gpt/fine_grained_callables.py:477", "source", until="0.17"),
    Rule("R22", "error",
         lambda s: "moe" in s.modules and s.overlaps_experts,
         "moe recompute does not work with overlap_moe_expert_parallel_comm",
         "drop moe, or drop the overlap",
         f"Megatron-LM main {CONFIG}:3030", "source",
         "disable moe in recompute_modules when enabling overlap_moe", since="0.17"),
    Rule("R23", "error",
         lambda s: "gdn_norm_out" in s.modules and s.spec.model.linear_attention is None,
         "gdn_norm_out needs gated delta net layers; this model has none",
         "drop gdn_norm_out",
         f"Megatron-LM main {CONFIG}", "source", "gdn_norm_out in recompute_modules is only supported",
         since="0.19"),
    Rule("R24", "error",
         lambda s: {"problem": s.plan_problem} if s.plan_problem else None,
         "recompute plan: {problem}",
         "plan again for this layout: mbr-perf plan --optimal",
         "mbr-perf", "harness"),
    Rule("R25", "error",
         lambda s: s.plan is not None and _moves_layers(s),
         "a recompute plan is set on built layers: not with CUDA graphs, offloading, Megatron-FSDP or "
         "Megatron-Bridge's loop",
         "drop these (--cuda_graph_impl none), or use one setting for all layers",
         "mbr-perf", "harness"),
    Rule("T07", "warning", _block_is_clamped,
         "full:block:{s.full.num_layers} recomputes all layers of the smaller chunks, which have {smallest} to "
         "{largest} layers",
         "recompute_num_layers counts per model chunk; use at most {smallest}",
         "transformer_block.py:446", "run"),
    Rule("T08", "error", _uniform_does_not_divide,
         "full:uniform:{s.full.num_layers} does not divide model chunks of {sizes} layers",
         "use a divisor of {common}, full:block, or megatron-core 0.17",
         f"transformer_block.py:532; {PULLS}/3562", "run", "index {bad} is out of range", until="0.17"),
    Rule("T10", "warning",
         lambda s: s.full is not None and s.full.distribute_saved_activations and s.tp == 1,
         "distribute_saved_activations with TP 1 copies every saved input and splits nothing",
         "drop distribute_saved_activations",
         "transformer_block.py:500", "source"),
    Rule("T16", "error",
         lambda s: _mtp_full(s, "uniform") and s.full is not None and s.full.num_layers != 1,
         "full:uniform:{s.full.num_layers} fails in the first forward pass of a model with MTP layers",
         "use full:uniform:1 or full:block",
         "transformer/multi_token_prediction.py:846", "run", "recompute_num_layers must be 1 for MTP recompute"),
    Rule("T17", "warning", lambda s: _mtp_full(s, "block"),
         "full:block does not recompute MTP layers",
         "use full:uniform:1 if the last stage does not fit",
         "transformer/multi_token_prediction.py:850", "run",
         "recompute_method == 'block' is not supported for MTP yet. Skipping recompute."),
    Rule("T18", "error",
         lambda s: (_mtp_full(s, "uniform") or _mtp_full(s, "block")) and s.quantized,
         "full recompute of MTP layers under {s.spec.compute_dtype} silently drops gradients",
         "use megatron-core 0.18 or bf16, or recompute modules instead",
         f"{PULLS}/4593, {PULLS}/4765, {PULLS}/4766", "issue", until="0.18"),
    Rule("T25", "warning", lambda s: {"moe", "shared_experts"} <= set(s.modules),
         "shared_experts are part of moe: they run a third time and free nothing",
         "drop shared_experts",
         "transformer/moe/moe_layer.py:432", "run"),
    Rule("T26", "warning", lambda s: {"moe", "moe_act"} <= set(s.modules),
         "moe_act is part of moe: it runs a third time and frees nothing",
         "drop moe_act",
         "transformer/moe/experts.py:738", "run"),
)  # fmt: skip


# Known defects of megatron-core and transformer-engine around recompute that no other rule covers.
DEFECTS = (
    Rule("K06", "warning", lambda s: s.full is not None and s.moe is not None and not s.gpu.is_cpu,
         "full recompute of MoE layers releases some activations one step late",
         "expect the measured peak above the predicted one",
         f"{ISSUES}/3221, {ISSUES}/5197", "issue", until="0.20.0dev0"),
    Rule("K07", "warning",
         lambda s: s.dispatcher == "flex" and s.spec.recompute.granularity != "none"
         and s.spec.kernels.moe_flex_dispatcher_backend != "hybridep",
         "DeepEP keeps token probabilities alive under recompute",
         "watch the peak over many steps, or use hybridep",
         f"{ISSUES}/5227", "issue"),
    Rule("K12", "note", lambda s: s.full is not None and s.full.method == "uniform" and s.full.num_layers > 1,
         "full:uniform:{s.full.num_layers} holds activations of {s.full.num_layers} layers in the backward pass",
         "use full:uniform:1: less memory, as fast",
         f"{ISSUES}/1226", "issue"),
    Rule("K18", "note", lambda s: joined(named=s.discarding),
         "{named}: megatron-core {s.mcore_name} compiles a C++ extension in the first step",
         "install c++ and ninja on every node; if a run hangs, delete share_storage_ext/lock under "
         "~/.cache/torch_extensions",
         f"{PULLS}/3649", "issue", since="0.17"),
    Rule("K28", "error",
         lambda s: "mlp" in s.modules and s.spec.model.add_bias_linear and 0 in s.spec.model.moe_layer_pattern,
         "mlp recompute of a model with linear biases hangs in the first backward pass",
         "use full recompute or core_attn, or model.add_bias_linear=false",
         "tensor_parallel/random.py:531", "run"),
)  # fmt: skip
