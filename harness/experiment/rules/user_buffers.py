"""Overlap of tensor-parallel communication through transformer-engine's user buffers: idle, or impossible."""

from harness.experiment.gpu import GPUS
from harness.experiment.rules.rule import Rule, Values
from harness.experiment.rules.situation import Situation
from harness.experiment.user_buffers import tuned_for

_BASE = "transformer-engine 2.11 pytorch/module/base.py"
_RACKS = ("gb200", "gb300")  # NVLink reaches beyond the node
_MX_ROWS = 128


def _idle(s: Situation) -> Values | None:
    if not s.kernels.tp_comm_overlap or s.gpu.is_cpu:
        return None
    reasons = {
        "TP is 1": s.tp == 1,
        "sequence_parallel is off": not s.par.sequence_parallel,
        "megatron-core's own layers have no user buffers": not s.uses_te,
        "megatron-core switches it off for multi-latent attention": s.model.mla is not None,
    }
    idle = [reason for reason, holds in reasons.items() if holds]
    return {"why": " and ".join(idle)} if idle else None


def _overlaps(s: Situation) -> bool:
    return s.uses_te and s.kernels.tp_comm_overlap and _idle(s) is None and not s.gpu.is_cpu


def _unread_operands(s: Situation) -> bool:
    return _overlaps(s) and (s.fp4 or s.fp8_recipe == "blockwise")


def _uneven_rows(s: Situation) -> Values | None:
    if not _overlaps(s) or s.fp8_recipe != "mxfp8":
        return None
    rows = s.spec.user_buffer_shape[0] // s.tp
    return {"rows": rows, "multiple": _MX_ROWS} if rows % _MX_ROWS else None


def _tuned_for_another(s: Situation) -> Values | None:
    """The known configuration that fits best, where it differs; GPUs of one generation have equal buffers."""
    buffers = s.kernels.tp_comm_overlap_cfg
    if buffers is None or not buffers.names or not _overlaps(s):
        return None
    asked: dict[str, str | int] = {
        "GPU": s.gpu.name, "precision": s.spec.precision.peak, "hidden size": s.model.hidden_size, "TP": s.tp,
        "CP": s.par.context_parallel_size, "micro-batch": s.batch.micro_batch_size, "sequence": s.batch.seq_length,
    }  # fmt: skip
    differing = {name: _differing(tuned_for(name), asked) for name in buffers.names}
    name = min(differing, key=lambda name: len(differing[name]))
    if not differing[name]:
        return None
    tuned = tuned_for(name)
    return {"name": name, "tuned": _listed(tuned, differing[name]), "asked": _listed(asked, differing[name])}


def _differing(tuned: dict[str, str | int], asked: dict[str, str | int]) -> list[str]:
    generations = [(GPUS[str(values["GPU"])].capability or (0,))[0] for values in (tuned, asked)]
    same_chip = generations[0] == generations[1]
    return [key for key in tuned if tuned[key] != asked[key] and not (key == "GPU" and same_chip)]


def _listed(values: dict[str, str | int], keys: list[str]) -> str:
    return ", ".join({"GPU": str(values[key]).upper(), "precision": str(values[key])}.get(key, f"{key} {values[key]}")
                     for key in keys)  # fmt: skip


RULES = (
    Rule("B04a", "warning", _idle,
         "tp_comm_overlap has no effect, because {why}",
         "nothing to do, as the run equals one without it",
         "Megatron-Bridge training/comm_overlap.py", "source"),
    Rule("B04b", "warning", lambda s: s.kernels.tp_comm_overlap_cfg is not None and not s.kernels.tp_comm_overlap,
         "tp_comm_overlap_cfg has no effect: tp_comm_overlap is off",
         "set kernels.tp_comm_overlap, or drop the buffers",
         "mbr-perf", "harness"),
    Rule("B04c", "error", _unread_operands,
         "tp_comm_overlap with {s.spec.compute_dtype}: user buffers carry BF16, FP8 with one scale per tensor, and MXFP8",
         "use kernels.tp_comm_overlap=false, or another --compute_dtype",
         _BASE, "source",
         "Unsupported quantizer for Userbuffers"),
    Rule("B04d", "error", lambda s: _overlaps(s) and s.tp > s.spec.gpus_per_node and s.gpu.name not in _RACKS,
         "tp_comm_overlap with TP {s.tp} over nodes of {s.spec.gpus_per_node} GPUs: user buffers need NVLink between all",
         "use a tensor_model_parallel_size within one node, or kernels.tp_comm_overlap=false",
         _BASE, "source"),
    Rule("B04e", "error", lambda s: _overlaps(s) and s.te_before("2.7"),
         "user buffers are made by quantization mode, which transformer-engine {s.software.transformer_engine} does not know",
         "install transformer-engine 2.7 or newer, or use kernels.tp_comm_overlap=false",
         "Megatron-LM training/initialize.py at core_v0.16.1", "source"),
    Rule("B04f", "error", _uneven_rows,
         "tp_comm_overlap with MXFP8: {rows} tokens on a tensor-parallel rank are not a multiple of {multiple}",
         "use another --seq_length or --micro_batch_size, or kernels.tp_comm_overlap=false",
         _BASE, "source",
         "Userbuffers requires MXFP8 tensor dims that are divisible by 128"),
    Rule("B04g", "note", _tuned_for_another,
         "tp_comm_overlap_cfg is {name}, tuned for {tuned}; the request is for {asked}",
         "compare it with kernels.tp_comm_overlap_cfg=null, transformer-engine's defaults",
         "Megatron-Bridge training/comm_overlap.py", "source"),
)  # fmt: skip
