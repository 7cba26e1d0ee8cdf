"""Rules for LoRA adapters."""

from harness.experiment.rules.rule import Rule, Situation, Values

_BRIDGE = "Megatron-Bridge peft/utils.py"


def _uneven_dim(s: Situation) -> Values | None:
    peft = s.spec.peft
    if peft is None:
        return None
    sizes = {"TP": s.tp, "ETP": s.etp if s.moe and _adapts_feed_forward(s) else 1}
    cut = next((name for name, size in sizes.items() if peft.dim % size), None)
    return {"dim": peft.dim, "cut": cut, "size": sizes[cut]} if cut else None


def _targets(s: Situation) -> tuple[str, ...]:
    return s.spec.peft.target_modules if s.spec.peft else ()


def _adapts_feed_forward(s: Situation) -> bool:
    return bool({"linear_fc1", "linear_fc2"} & {*_targets(s)})


def _has_only_qkv_without_any(s: Situation) -> bool:
    model = s.spec.model
    return _targets(s) == ("linear_qkv",) and (model.mla is not None or all(model.linear_attention_pattern))


def _checkpoint_without_gradient(s: Situation) -> Values | None:
    """Return a checkpoint in the first layer whose input requires no gradient, though an adapter stands behind it."""
    targets, acting = {*_targets(s)}, set(s.effective.modules if s.effective else ())
    found = set[str]()
    if targets and targets <= {"linear_fc1", "linear_fc2"}:
        found = {"mlp", "moe", "layernorm"} | ({"moe_act"} if "linear_fc1" not in targets else set())
    elif "linear_qkv" in targets and not s.uses_te:
        found = {"layernorm"}
    return {"module": min(found & acting)} if found & acting else None


RULES = (
    Rule("LORA01", "error", lambda s: s.spec.peft is not None and s.spec.task != "peft",
         "peft is set, but task {s.spec.task} trains all weights",
         "use --task peft, or drop the peft settings",
         "mbr-perf", "harness"),
    Rule("LORA02", "error", _uneven_dim,
         "peft.dim {dim} is not a multiple of {cut} {size}, over which adapters are cut",
         "use a peft.dim that {size} divides",
         f"{_BRIDGE}; tensor_parallel/layers.py", "run", "is not divisible by"),
    Rule("LORA03", "error", _has_only_qkv_without_any,
         "no layer has a linear_qkv",
         "add linear_proj, linear_fc1 or linear_fc2 to peft.target_modules",
         "Megatron-Bridge peft/module_matcher.py", "source"),
    Rule("LORA05", "error", lambda s: s.spec.peft is not None and s.spec.ddp.use_megatron_fsdp,
         "mbr-perf does not train adapters under Megatron-FSDP",
         "use ddp.use_megatron_fsdp=false",
         "mbr-perf", "harness"),
    Rule("LORA06", "error",
         lambda s: s.moe is not None and s.moe.moe_grouped_gemm and not s.uses_te and _adapts_feed_forward(s),
         "without transformer-engine the experts of a grouped GEMM have no linear layers to adapt",
         "use model.moe.moe_grouped_gemm=false, or adapt linear_qkv and linear_proj only",
         "transformer/moe/experts.py:120", "run", until="0.17"),
    Rule("LORA07", "error", _checkpoint_without_gradient,
         "recompute of {module} fails, or trains nothing: in the first layer its input requires no gradient",
         "recompute other modules or whole layers",
         "tensor_parallel/random.py:499; Megatron-Bridge peft/recompute.py", "run",
         "missing 1 required positional argument"),
)  # fmt: skip
