"""Rules for quantised layers, and for the user buffers that overlap their communication."""

from harness.experiment.gpu import PRECISIONS
from harness.experiment.rules.rule import CONFIG, Rule, Situation, Values, joined

_TE = "transformer_engine/pytorch/fp8.py and module/linear.py"

# The quantised GEMMs of a recipe need these multiples in the token and the feature dimension.
_MULTIPLES = {"delayed": (8, 16), "tensorwise": (8, 16), "blockwise": (8, 16), "mxfp8": (32, 32), "nvfp4": (16, 16)}


def _gpu_too_old(s: Situation) -> Values | None:
    needed, found = s.spec.precision.min_capability, s.gpu.capability
    if needed is None or found is None or found >= needed:
        return None
    usable = [p.name for p in PRECISIONS.values() if p.min_capability is not None and p.min_capability <= found]
    return {"needed": "{}.{}".format(*needed), "found": "{}.{}".format(*found), "usable": ", ".join(usable)}


def _te_too_old(s: Situation) -> Values | None:
    needed = s.spec.precision.min_transformer_engine
    return {"needed": needed} if needed and s.te_before(f"{needed}.dev0") and not s.gpu.is_cpu else None


def _features(s: Situation) -> dict[str, int]:
    heads, groups = s.spec.model.num_attention_heads, s.spec.model.query_groups
    features = {"hidden_size": s.spec.model.hidden_size, "ffn_hidden_size / TP": s.spec.model.ffn_hidden_size // s.tp}
    if s.spec.model.mla is None:
        features["query, key and value / TP"] = (heads + 2 * groups) * s.spec.model.head_dim // s.tp
    if s.moe is not None:
        features["moe_ffn_hidden_size / ETP"] = s.moe.moe_ffn_hidden_size // s.etp
    return features


def _shapes_do_not_fit(s: Situation) -> Values | None:
    recipe = s.spec.precision.transformer_config.get("fp8_recipe") or s.spec.precision.transformer_config.get(
        "fp4_recipe"
    )
    if recipe is None:
        return None
    token_unit, feature_unit = _MULTIPLES[str(recipe)]
    tokens = s.spec.batch.micro_batch_size * s.spec.batch.seq_length // s.cp
    wrong = [
        f"{name} {size} is no multiple of {feature_unit}" for name, size in _features(s).items() if size % feature_unit
    ]
    if tokens % token_unit:
        wrong.append(f"tokens per micro-batch {tokens} is no multiple of {token_unit}")
    return joined(wrong=wrong)


RULES = (
    Rule("Q12", "error", _gpu_too_old,
         "{s.spec.compute_dtype} needs compute capability {needed}; {s.gpu.name} has {found}",
         "use one of {usable}",
         "transformer_engine/pytorch/fp8.py", "source"),
    Rule("Q13", "error", _te_too_old,
         "{s.spec.compute_dtype} needs transformer-engine {needed}; found {s.software.transformer_engine}",
         "upgrade transformer-engine",
         "fp8_utils.py:536; megatron/training/arguments.py at core_v0.16.1", "source"),
    Rule("Q14", "error", lambda s: s.quantized and not s.uses_te and not s.gpu.is_cpu,
         "the local layers ignore {s.spec.compute_dtype} and would train in bf16",
         "use kernels.transformer_impl=transformer_engine",
         f"{CONFIG}:985", "source"),
    Rule("Q15", "error", _shapes_do_not_fit,
         "sizes do not fit {s.spec.compute_dtype} GEMMs: {wrong}",
         "change the sizes or the parallelism, or use bf16",
         _TE, "source", "FP8 execution requires the product of all dimensions"),
)  # fmt: skip

_BASE = "transformer-engine 2.11 pytorch/module/base.py"
_MX_ROWS = 128


def _overlaps(s: Situation) -> bool:
    return s.uses_te and s.spec.makes_user_buffers


def _uneven_rows(s: Situation) -> Values | None:
    if not _overlaps(s) or s.fp8_recipe != "mxfp8":
        return None
    rows = s.spec.user_buffer_shape[0] // s.tp
    return {"rows": rows, "multiple": _MX_ROWS} if rows % _MX_ROWS else None


USER_BUFFERS = (
    Rule("B04a", "warning", lambda s: s.spec.kernels.tp_comm_overlap and not _overlaps(s) and not s.gpu.is_cpu,
         "tp_comm_overlap has no effect without TP, sequence_parallel and transformer-engine's layers, or with "
         "multi-latent attention",
         "drop it: the run equals a run without it",
         "Megatron-Bridge training/comm_overlap.py", "source"),
    Rule("B04c", "error", lambda s: _overlaps(s) and (s.spec.precision.peak == "fp4" or s.fp8_recipe == "blockwise"),
         "tp_comm_overlap does not work with {s.spec.compute_dtype}",
         "use kernels.tp_comm_overlap=false, or another --compute_dtype",
         _BASE, "source", "Unsupported quantizer for Userbuffers"),
    Rule("B04d", "error", lambda s: _overlaps(s) and s.tp > s.spec.gpus_per_node and not s.gpu.is_rack,
         "tp_comm_overlap needs NVLink between all TP ranks, but TP {s.tp} spans nodes of {s.spec.gpus_per_node} GPUs",
         "use a tensor_model_parallel_size within one node, or kernels.tp_comm_overlap=false",
         _BASE, "source"),
    Rule("B04e", "error", lambda s: _overlaps(s) and s.te_before("2.7"),
         "transformer-engine {s.software.transformer_engine} knows no quantization mode of user buffers",
         "install transformer-engine 2.7 or newer, or use kernels.tp_comm_overlap=false",
         "Megatron-LM training/initialize.py at core_v0.16.1", "source"),
    Rule("B04f", "error", _uneven_rows,
         "tp_comm_overlap with MXFP8: {rows} tokens per TP rank are not a multiple of {multiple}",
         "use another --seq_length or --micro_batch_size, or kernels.tp_comm_overlap=false",
         _BASE, "source", "Userbuffers requires MXFP8 tensor dims"),
)  # fmt: skip
