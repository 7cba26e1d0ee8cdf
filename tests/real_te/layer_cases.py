"""Every kind of layer under every legal recompute setting and every precision, as cases to trace."""

from harness.experiment.recompute import FullRecompute, SelectiveRecompute
from harness.experiment.software import Software
from harness.predict.search import candidates
from harness.records.trace import TraceCase

SOFTWARE = Software(megatron_core="0.16.1", transformer_engine="2.11.0")
PRECISIONS = {
    "bf16": "h100", "fp8_cs": "h100", "fp8_ds": "h100", "fp8_sc": "h100", "fp8_mx": "b200", "nvfp4": "b200",
}  # fmt: skip
# Kind of layer -> builder in the models shared with the tracer's tests, layer kind of the trace, its other options.
KINDS = {
    "dense": ("llama", "dense", {}),
    "all_to_all": ("llama_by_heads", "dense", {}),
    "qk_layernorm": ("qwen", "dense", {}),
    "qk_layernorm_moe": ("qwen_moe", "moe", {}),
    "moe": ("mixtral", "moe", {}),
    "mla_dense": ("deepseek", "dense", {}),
    "mla_moe": ("deepseek", "moe", {}),
    "window_and_sinks": ("gpt_oss", "window_moe", {}),
    "gated_attention": ("qwen3_next", "moe", {}),
    "delta_net": ("qwen3_next", "delta_moe", {}),
    "first": ("llama", "dense", {"pre": True}),
    "last": ("llama", "dense", {"post": True}),
    "lora": ("lora", "dense", {}),
    "lora_first": ("lora", "dense", {"pre": True}),
    "lora_qkv": ("lora_qkv", "dense", {}),
    "lora_moe": ("lora_moe", "moe", {}),
}
# Modules that a layer of this kind does not have; models have layers of both kinds.
_WITHOUT = {
    "dense": {"moe", "moe_act", "shared_experts"}, "moe": {"mlp"}, "window_moe": {"mlp"}, "delta_moe": {"mlp", "core_attn"},
}  # fmt: skip


def layer_cases(models):
    """Cases by ``kind/precision/setting``. Settings that group layers are traced with two layers, all others with one."""
    cases = []
    for kind, (builder, layer_kind, options) in KINDS.items():
        for precision, gpu in PRECISIONS.items():
            spec = getattr(models, builder)(dtype=precision, gpu=gpu)
            for policy in _settings(spec, _WITHOUT[layer_kind]):
                num_layers = 2 if isinstance(policy, FullRecompute) else 1
                case = models.case(
                    f"{kind}/{precision}/{policy.text}", spec.model_copy(update={"recompute": policy}), layer_kind, num_layers,
                    **options,
                )  # fmt: skip
                cases.append(case)
    return cases


def _settings(spec, absent):
    """Legal settings that name no absent module; whole layers in units of one and of two, since more would only repeat."""
    rows = candidates(spec, SOFTWARE, "transformer_engine").rows
    policies = [row.spec.recompute for row in rows if row.is_legal]
    return [policy for policy in policies if _is_of(policy, absent)]


def _is_of(policy, absent):
    match policy:
        case FullRecompute():
            return policy.num_layers <= 2
        case SelectiveRecompute():
            return not absent & set(policy.modules)
        case _:
            return True


# In every precision; other kinds are made of the same modules, and have one without and one with scales.
_IN_ALL_PRECISIONS = {"dense", "qk_layernorm_moe", "mla_moe"}
_OTHERS_IN = {"bf16", "fp8_mx"}


def sample(cases):
    """For kinds and precisions: no recompute, the most modules that are legal together, and of some kinds whole layers.

    A whole layer keeps its input, of whatever kind it is.
    """
    groups: dict[tuple[str, ...], list[TraceCase]] = {}
    for case in cases:
        kind, precision, _ = case.key.split("/")
        if kind in _IN_ALL_PRECISIONS or precision in _OTHERS_IN:
            groups.setdefault((kind, precision), []).append(case)
    chosen = []
    for group in groups.values():
        forms = {type(case.spec.recompute): case for case in group}  # the last of each, which names most
        is_whole = group[0].key.split("/")[0] in _IN_ALL_PRECISIONS
        chosen += [case for form, case in forms.items() if is_whole or form is not FullRecompute]
    return chosen
