"""Reads parts of a Hugging Face `config.json` as settings of a model: sizes, attention, rotary embedding, experts.

Each reader returns settings by path. Facts: the config classes of transformers 5.23.0, Megatron-Bridge @067f987
(models/conversion/model_bridge.py, models/*/*_bridge.py).
"""

from collections.abc import Sequence
from dataclasses import replace

from harness.foreign.hf_config import REMEDY, HfConfig
from harness.resolve.recipe import Setting, Value

Settings = dict[str, Setting]

_MOST_VOCAB_UNIT = 128
_ROPE_KEYS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
"""Keys without which transformers refuses a scaled rotary embedding, by its type."""
_MANY = 10_000  # a file may name any number of layers; the spec refuses more


def core(config: HfConfig) -> Settings:
    """Read the sizes that every architecture has."""
    rows = (
        ("num_layers", "num_hidden_layers"), ("hidden_size", "hidden_size"), ("ffn_hidden_size", "intermediate_size"),
        ("num_attention_heads", "num_attention_heads"), ("vocab_size", "vocab_size"),
    )  # fmt: skip
    found = {f"model.{ours}": config.taken(config.size, key) for ours, key in rows}
    absent = [key for _, key in rows if key not in config.values]
    if absent:
        found["model.num_layers"] = replace(
            found["model.num_layers"],
            note=f"{config.label} has no {', '.join(absent)}: defaults of {config.class_name}",
        )
    vocab = config.size("vocab_size")
    unit = config.defaults.get("vocab_unit") or min(vocab & -vocab, _MOST_VOCAB_UNIT)
    assert isinstance(unit, int)
    found["model.make_vocab_size_divisible_by"] = config.setting(unit, "vocab_size")
    found["model.share_embeddings_and_output_weights"] = config.taken(config.flag, "tie_word_embeddings")
    found["model.layernorm_epsilon"] = config.taken(config.number, "rms_norm_eps")
    found["model.attention_dropout"] = config.setting(config.number("attention_dropout") or 0.0, "attention_dropout")
    if config.text("hidden_act") not in ("silu", "swish"):
        config.refuse(
            "hidden_act", f"{config.text('hidden_act')}: mbr-perf reads models with silu only", "use a model with silu"
        )
    return found


def heads(config: HfConfig) -> Settings:
    """Read grouped-query attention: key/value heads, channels per head, biases, norms."""
    groups = config.whole("num_key_value_heads") or config.size("num_attention_heads")
    found = {
        "model.num_query_groups": config.setting(groups, "num_key_value_heads"),
        "model.kv_channels": config.taken(config.whole, "head_dim"),
    }
    bias_key = "qkv_bias" if "qkv_bias" in config.defaults else "attention_bias"
    has_bias, mlp_bias = config.flag(bias_key), config.flag("mlp_bias")
    if mlp_bias and not has_bias:
        config.refuse(
            "mlp_bias",
            "biases only in the feed-forward blocks",
            "use biases in all linear layers or in none, as megatron-core does",
        )
    note = ""
    if has_bias and not mlp_bias and bias_key in config.values and config.class_name in ("LlamaConfig", "Qwen3Config"):
        note = f"{config.label}: {bias_key}: as in Megatron-Bridge, the attention's output projection has no bias"
    found["model.add_qkv_bias"] = config.setting(has_bias and not mlp_bias, bias_key, note=note)
    found["model.add_bias_linear"] = config.setting(mlp_bias, "mlp_bias")
    return found


def rope(config: HfConfig) -> Settings:
    """Read the rotary embedding; scalings of frequencies alone change neither memory nor time."""
    name = "rope_parameters" if config.values.get("rope_parameters") else "rope_scaling"
    outer, found = config.table(name), dict[str, Setting]()
    if any(isinstance(each, dict) for each in outer.values.values()):
        config.refuse(name, "a rotary embedding for each kind of layer", "mbr-perf knows one for all layers")
    for path, key in (("model.rotary_base", "rope_theta"), ("model.rotary_percent", "partial_rotary_factor")):
        place, where = (outer, f"{name}.{key}") if f"{name}.{key}" in outer.values else (config, key)
        value = place.whole(where) if key == "rope_theta" else place.number(where) or 1.0
        found[path] = place.setting(value, where)
        config.read.add(key)
    return found | _scaling(config, outer, name)


def _scaling(config: HfConfig, outer: HfConfig, name: str) -> Settings:
    written = outer.text(f"{name}.rope_type") or outer.text(f"{name}.type")
    kind = str(written or config.defaults.get("rope_type") or "default")
    if kind == "default" and f"{name}.factor" in outer.values:
        config.refuse(f"{name}.rope_type", "missing, and factor belongs to a type", f"known: {', '.join(_ROPE_KEYS)}")
    for key in _ROPE_KEYS.get(kind, ()) if outer.values else ():
        if outer.number(f"{name}.{key}") is None and outer.of(f"{name}.{key}") is None:
            config.refuse(f"{name}.{key}", f"missing, and {kind} needs it", REMEDY)
    if kind == "llama3":
        return {"model.rope_scaling_factor": outer.setting(outer.number(f"{name}.factor"), f"{name}.factor")}
    if kind == "yarn":
        return _yarn(config, outer, name)
    if kind not in ("default", *_ROPE_KEYS):
        config.refuse(name, f"{kind}: mbr-perf does not know this rotary embedding", f"known: {', '.join(_ROPE_KEYS)}")
    return {}


def _yarn(config: HfConfig, outer: HfConfig, name: str) -> Settings:
    """Read YaRN; with latent attention it has settings of its own."""
    rows: dict[str, Value] = {
        "factor": 1.0,
        "original_max_position_embeddings": 4096,
        "mscale": None,
        "mscale_all_dim": None,
    }
    prefix = "model.mla." if "kv_lora_rank" in config.defaults else "model.yarn.yarn_"
    if prefix == "model.yarn.yarn_":
        rows |= {"beta_fast": 32.0, "beta_slow": 1.0}
    rows |= {key: each for key in rows if isinstance(each := config.defaults.get(f"yarn_{key}"), float)}
    found: Settings = {}
    for key, usual in rows.items():
        where = f"{name}.{key}"
        value = outer.whole(where) if key.startswith("original") else outer.number(where)
        if value is not None or usual is not None:
            ours = "rotary_scaling_factor" if key == "factor" else key
            found[prefix + ours] = outer.setting(usual if value is None else value, where)
    if prefix == "model.yarn.yarn_":
        found["model.position_embedding_type"] = outer.setting("yarn", f"{name}.rope_type")
        truncates = (
            outer.flag(f"{name}.truncate")
            if f"{name}.truncate" in outer.values
            else bool(config.defaults.get("truncate", True))
        )
        found["model.yarn.yarn_correction_range_round_to_int"] = outer.setting(truncates, f"{name}.truncate")
    return found


def window(config: HfConfig) -> Settings:
    """Read sliding windows: of all layers, of those from `max_window_layers` on, or as `layer_types` names them."""
    width = config.whole("sliding_window")
    layers = min(config.size("num_hidden_layers"), _MANY)
    if "use_sliding_window" in config.defaults and not config.flag("use_sliding_window"):
        width = None
    every_second = tuple((i + 1) % 2 for i in range(layers))
    pattern = every_second if config.defaults.get("alternates") else (1,) * layers
    if "max_window_layers" in config.defaults:
        first = min(config.whole("max_window_layers") or 0, layers)
        pattern = (0,) * first + (1,) * (layers - first)
    if (kinds := config.items("layer_types")) is not None:
        pattern = _named_layers(config, kinds, layers)
    if width is None or not any(pattern):
        return {}
    found: Settings = {"model.window_size": config.setting((width - 1, 0), "sliding_window")}
    if not all(pattern):
        found["model.window_attn_skip_freq"] = config.setting(2 if pattern == every_second else pattern, "layer_types")
    return found


def _named_layers(config: HfConfig, kinds: Sequence[object], layers: int) -> tuple[int, ...]:
    """Return which layers have windows; none where a name is unknown or missing."""
    unknown = [kind for kind in kinds if kind not in ("sliding_attention", "full_attention")]
    if unknown or len(kinds) != layers:
        config.refuse("layer_types", f"{unknown[0] if unknown else len(kinds)}: not one known type for each layer",
                      "one of sliding_attention, full_attention for each layer")  # fmt: skip
        return ()
    return tuple(int(kind == "sliding_attention") for kind in kinds)


def experts(config: HfConfig) -> Settings:
    """Read routed experts, shared experts and which layers have them."""
    names = ("n_routed_experts", "num_local_experts", "num_experts")
    count = next(key for held in (config.values, config.defaults) for key in names if key in held)
    width = "moe_intermediate_size" if "moe_intermediate_size" in config.defaults else "intermediate_size"
    moe: dict[str, Setting] = {
        "num_moe_experts": config.taken(config.size, count),
        "moe_router_topk": config.taken(config.size, "num_experts_per_tok"),
        "moe_ffn_hidden_size": config.taken(config.size, width),
        "moe_layer_freq": _expert_layers(config),
    }
    if "n_shared_experts" in config.defaults and (shared := config.whole("n_shared_experts")):
        moe["moe_shared_expert_intermediate_size"] = config.setting(
            shared * config.size(width), "n_shared_experts", width
        )
    elif size := config.whole("shared_expert_intermediate_size"):
        moe["moe_shared_expert_intermediate_size"] = config.setting(size, "shared_expert_intermediate_size")
    loss = next(
        (key for key in ("aux_loss_alpha", "router_aux_loss_coef") if key in (*config.values, *config.defaults)), ""
    )
    if loss:
        moe["moe_aux_loss_coeff"] = config.setting(config.number(loss) or 0.0, loss)
    config.read |= {"aux_loss_alpha", "router_aux_loss_coef"}
    normalises = config.flag("norm_topk_prob")
    if "norm_topk_prob" in config.defaults and "scoring_func" not in config.defaults:
        moe["moe_router_pre_softmax"] = config.setting(not normalises, "norm_topk_prob")
    return {f"model.moe.{name}": setting for name, setting in moe.items()}


def _expert_layers(config: HfConfig) -> Setting:
    """Return which layers have experts: all after the first dense ones, or every n-th but for those named."""
    layers = min(config.size("num_hidden_layers"), _MANY)
    if "first_k_dense_replace" in config.defaults:
        dense = min(max(config.whole("first_k_dense_replace") or 0, 0), layers)
        step = config.whole("moe_layer_freq")
        if step not in (None, 1):
            config.refuse("moe_layer_freq", f"{step}: experts in every {step}th layer", "mbr-perf knows only 1")
        return config.setting((0,) * dense + (1,) * (layers - dense) if dense else 1, "first_k_dense_replace")
    every, named = max(config.whole("decoder_sparse_step") or 1, 1), config.items("mlp_only_layers") or ()
    pattern = tuple(int(i not in named and (i + 1) % every == 0) for i in range(layers))
    return config.setting(1 if all(pattern) else pattern, "decoder_sparse_step", "mlp_only_layers")


def groups(config: HfConfig) -> Settings:
    """Read DeepSeek's router: scores, groups of experts, the factor on the chosen scores, biases that balance."""
    method = config.text("topk_method")
    found = {"moe_router_topk_scaling_factor": config.taken(config.number, "routed_scaling_factor")}
    if method != "greedy":
        found["moe_router_num_groups"] = config.taken(config.whole, "n_group")
        found["moe_router_group_topk"] = config.taken(config.whole, "topk_group")
    config.read |= {"n_group", "topk_group"}
    found["moe_router_score_function"] = config.taken(config.text, "scoring_func")
    if method not in (None, "greedy", "group_limited_greedy", "noaux_tc"):
        config.refuse(
            "topk_method", f"{method}: no such way to choose experts", "greedy, group_limited_greedy or noaux_tc"
        )
    return {f"model.moe.{name}": setting for name, setting in found.items()}


def latents(config: HfConfig) -> Settings:
    """Read multi-latent attention. Biases in its projections have no counterpart."""
    rank = config.whole("q_lora_rank")
    found = {"q_lora_rank": config.setting(rank, "q_lora_rank")}
    names = {"kv_lora_rank": "kv_lora_rank", "qk_head_dim": "qk_nope_head_dim",
             "qk_pos_emb_head_dim": "qk_rope_head_dim",
             "v_head_dim": "v_head_dim"}  # fmt: skip
    found |= {ours: config.taken(config.size, key) for ours, key in names.items()}
    if config.flag("attention_bias"):
        config.refuse("attention_bias", "biases in multi-latent attention", "megatron-core has none there")
    config.read |= {"num_key_value_heads", "head_dim", "qk_head_dim", "mlp_bias"}
    found["rotary_scaling_factor"] = Setting(1.0, config.source("rope_scaling"))
    return {f"model.mla.{name}": setting for name, setting in found.items()}


def more_tokens(config: HfConfig) -> Settings:
    """Read layers of multi-token prediction."""
    count = config.whole("num_nextn_predict_layers")
    return {"model.mtp_num_layers": config.setting(count or None, "num_nextn_predict_layers")}


def qk_norm(config: HfConfig) -> Settings:
    """Read whether queries and keys are normalised."""
    return {"model.qk_layernorm": config.taken(config.flag, "use_qk_norm")}


def clamped(config: HfConfig) -> Settings:
    """Read the clamped SwiGLU of gpt-oss."""
    return {"model.activation_func_clamp_value": config.taken(config.number, "swiglu_limit")}


def delta_net(config: HfConfig) -> Settings:
    """Read gated delta net layers, which replace attention in all but every n-th layer."""
    kinds, layers = config.items("layer_types"), min(config.size("num_hidden_layers"), _MANY)
    step = config.whole("full_attention_interval") or 4
    pattern = tuple(int((i + 1) % step != 0) for i in range(layers))
    asked = pattern if kinds is None else tuple(int(kind == "linear_attention") for kind in kinds)
    if any(kind not in ("linear_attention", "full_attention") for kind in kinds or ()):
        config.refuse(
            "layer_types", "a type that is neither linear_attention nor full_attention", "write one for each layer"
        )
    key = "full_attention_interval" if kinds is None else "layer_types"
    found = {"linear_attention_freq": config.setting(step if asked == pattern else asked, key)}
    for name in ("linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads",
                 "linear_num_value_heads"):  # fmt: skip
        found[name] = config.taken(config.size, name)
    return {f"model.linear_attention.{name}": setting for name, setting in found.items()}
