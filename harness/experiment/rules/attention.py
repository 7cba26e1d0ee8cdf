"""Rules for attention with sliding windows, sinks and gates, and for gated delta nets in its place."""

from harness.experiment.model import LinearAttentionModel
from harness.experiment.rules.rule import CONFIG, Predicate, Rule, Situation, Values

_TE = "extensions/transformer_engine.py"
_GDN = "ssm/gated_delta_net.py"


def _has_sinks(s: Situation) -> bool:
    return s.spec.model.softmax_type != "vanilla"


def _unlike_flash(s: Situation) -> Values | None:
    found = ["attention sinks"] * _has_sinks(s) + ["a sliding window"] * (s.spec.model.window_size is not None)
    return {"found": " and ".join(found)} if found else None


def _local_flash(s: Situation) -> Values | None:
    flash = not s.uses_te and s.spec.kernels.attention_backend != "unfused"
    return _unlike_flash(s) if flash else None


def _delta(condition: Predicate) -> Predicate:
    return lambda s: condition(s) if s.spec.model.linear_attention else None


def _net(s: Situation) -> LinearAttentionModel:
    assert s.spec.model.linear_attention
    return s.spec.model.linear_attention


def _heads_uneven_over(s: Situation, ranks: int) -> Values | None:
    heads = {
        "linear_num_key_heads": _net(s).linear_num_key_heads,
        "linear_num_value_heads": _net(s).linear_num_value_heads,
    }
    uneven = next((name for name, number in heads.items() if number % ranks), None)
    return {"name": uneven, "heads": heads[uneven]} if uneven else None


def _unaligned_projection(s: Situation) -> Values | None:
    """Return the width of the input projection that FP8's kernels cannot take."""
    net, unit = _net(s), 32 if s.fp8_recipe == "mxfp8" else 16
    width = net.projected_channels
    return {"width": width, "unit": unit} if s.spec.precision.peak == "fp8" and width % unit else None


RULES = (
    Rule("L01", "error", _local_flash,
         "{found}: without transformer-engine, only unfused attention has this",
         "use kernels.attention_backend=unfused",
         "mbr-perf", "harness",
         "flash-like attention knows no sliding window and no attention sinks; use unfused attention"),
    Rule("L02", "error", lambda s: s.uses_te and _has_sinks(s) and s.te_before("2.8.0"),
         "attention sinks need transformer-engine 2.8; found {s.software.transformer_engine}",
         "upgrade transformer-engine",
         f"{_TE}:1283", "source",
         "Transformer-Engine v{s.software.transformer_engine} must be >= 2.8.0 to support`softmax_type`."),
    Rule("L03", "error", lambda s: s.uses_te and _has_sinks(s) and s.spec.kernels.attention_backend == "flash",
         "flash attention has no attention sinks",
         "use kernels.attention_backend=fused or auto",
         "transformer-engine 2.11 dot_product_attention/utils.py", "source"),
    Rule("L04", "error", lambda s: _unlike_flash(s) if s.cp > 1 and s.spec.parallelism.cp_comm_type == "p2p" else None,
         "{found}: not with CP {s.cp} where keys and values pass from rank to rank (cp_comm_type p2p)",
         "use -cp 1, or --set parallelism.cp_comm_type=a2a",
         "transformer-engine 2.11 dot_product_attention/context_parallel.py", "source"),
    Rule("P26", "error", lambda s: s.spec.model.attention_output_gate and s.spec.model.mla is not None,
         "attention_output_gate does not work with multi-latent attention",
         "drop one of the two",
         f"{CONFIG}:2070", "source", "Output gate is not supported for MLA yet."),
    Rule("P37", "error", lambda s: bool(s.spec.model.mla and (s.spec.model.qk_l2_norm or s.spec.model.no_rope_freq)),
         "qk_l2_norm and no_rope_freq do not work with multi-latent attention",
         "drop these, or model.mla",
         "megatron-core 0.16.1 models/gpt/gpt_layer_specs.py:99", "source", "qk_l2_norm is not supported with MLA."),
    Rule("L05", "error", _delta(lambda s: _heads_uneven_over(s, s.tp)),
         "{name} {heads} is not a multiple of TP {s.tp}",
         "use a TP size that divides these heads",
         f"{CONFIG}:975", "run", "{name} must be a multiple of tensor_model_parallel_size.", until="0.18"),
    Rule("L16", "error", _delta(lambda s: _heads_uneven_over(s, s.tp * s.cp)),
         "{name} {heads} is not a multiple of TP {s.tp} times CP {s.cp}",
         "use TP and CP sizes whose product divides these heads",
         "megatron-core 0.19 transformer/transformer_config.py:1375", "run",
         "self.{name}={heads} must be a multiple of (self.tensor_model_parallel_size={s.tp} * "
         "self.context_parallel_size={s.cp}).", since="0.18"),
    Rule("L06", "error",
         _delta(lambda s: _net(s).linear_num_value_heads % _net(s).linear_num_key_heads != 0),
         "linear_num_value_heads is not a multiple of linear_num_key_heads",
         "set the heads of model.linear_attention",
         f"{CONFIG}:969", "run", "must be a multiple of linear_num_key_heads"),
    Rule("L07", "error", _delta(lambda s: s.cp > 1),
         "before 0.18, megatron-core has no context parallelism (CP {s.cp}) for gated delta nets",
         "use -cp 1, or megatron-core 0.18",
         f"{CONFIG}:983", "run", "Gated delta net does not support context parallel for now,", until="0.18"),
    Rule("L08", "error", _delta(lambda s: not s.uses_te and not s.gpu.is_cpu),
         "gated delta nets need transformer-engine's layers",
         "use kernels.transformer_impl=transformer_engine",
         "models/gpt/experimental_attention_variant_module_specs.py:386", "source",
         "decoder block spec only supports transformer engine"),
    Rule("L09", "error", _delta(_unaligned_projection),
         "FP8 needs the input projection of gated delta nets, {width} wide, in multiples of {unit}",
         "use bf16, or other heads in model.linear_attention",
         f"{_GDN}:143", "source", "innermost dimension of the GDN layer input projection"),
    Rule("L10", "error",
         _delta(lambda s: bool(s.spec.model.mtp_num_layers) and s.spec.model.linear_attention_pattern[-1] == 1),
         "mbr-perf builds MTP layers, which copy the last decoder layer, with attention only",
         "let the last layer keep attention, or set model.mtp_num_layers=null",
         "mbr-perf", "harness"),
    Rule("L11", "error", _delta(lambda s: s.spec.model.mla is not None),
         "mbr-perf builds gated delta nets without multi-latent attention only",
         "drop model.mla or model.linear_attention",
         "mbr-perf", "harness"),
    Rule("L12", "note", _delta(lambda s: not s.gpu.is_cpu),
         "gated delta nets run kernels of flash-linear-attention",
         "install flash-linear-attention and causal-conv1d on every node",
         f"{_GDN}:38", "source"),
)  # fmt: skip
