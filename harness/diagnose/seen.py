"""Sees symptoms in memory, FLOPs and settings: a function for each, which returns the evidence, or ""."""

import math

from harness.diagnose.values import Case
from harness.experiment.recompute import FullRecompute
from harness.measure.prediction import limits_for
from harness.units import format_bytes

_HEADROOM = 0.05  # of the device: less free memory on another rank is no evidence


def is_device_oom(case: Case) -> bool:
    """Return whether this job alone filled the device in training, or the limit that stands for a smaller device."""
    if not case.verdict.recompute_helps:
        return False
    is_stand_in = case.spec is not None and case.spec.measure.memory_limit_bytes is not None
    return case.on_device or (case.verdict.oom_class == "self_imposed_limit" and is_stand_in)


def rank_out_of_memory_beside_headroom(case: Case) -> str:
    """See exactly one rank out of memory while all others, by their own peaks until then, have room for its request.

    A log reports other ranks only as they were at an earlier iteration.
    """
    full = [rank.rank for rank in case.ranks if rank.has_oom]
    held = [rank.held_bytes or math.inf for rank in case.ranks if not rank.has_oom]
    is_known = case.origin == "run" and not case.is_on_cpu and len(full) == 1 and bool(held)
    total = case.capacity_bytes if is_known and is_device_oom(case) else None
    if total is None or max(held) + (case.verdict.request_bytes or 0) > total * (1 - _HEADROOM):
        return ""
    most = format_bytes(round(max(held)))
    return f"only rank {full[0]}; no other held more than {most} of {format_bytes(total)} until then"


def out_of_memory_with_expandable_segments(case: Case) -> str:
    """See a device that was full with expandable segments on."""
    if case.verdict.oom_class not in ("capacity", "fragmentation") or not case.expandable_segments:
        return ""
    return "PYTORCH_CUDA_ALLOC_CONF has expandable_segments:True"


def predicted_too_large(case: Case) -> str:
    """See a predicted peak that does not fit; name the worst stage's largest part. Empty for a job that ended well."""
    usable = limits_for(case.spec).budget_bytes if case.spec else None
    if case.prediction is None or usable is None or case.status == "ok":
        return ""
    if case.prediction.peak_bytes <= usable:
        return ""
    stage = case.prediction.worst_stage
    largest, size = max(stage.parts.items(), key=lambda part: part[1])
    peak = f"{format_bytes(case.prediction.peak_bytes)} of {format_bytes(usable)} usable on stage {stage.pp_rank}"
    return f"{peak}, most of it {largest} ({format_bytes(size)})"


def recompute_and_still_out_of_memory(case: Case) -> str:
    """See a job out of memory for lack of capacity, although recompute is on."""
    if case.spec is None or case.spec.recompute.text == "none" or not is_device_oom(case):
        return ""
    if case.verdict.oom_class not in ("capacity", "self_imposed_limit"):
        return ""
    optimizer = "" if case.spec.optimizer.use_distributed_optimizer else "; the optimizer is not distributed"
    return f"recompute is {case.spec.recompute.text}{optimizer}"


_DROP = 0.15  # of the executed FLOPs


def slow_with_recompute(case: Case) -> str:
    """See that recompute of mlp or of whole layers adds too many FLOPs to a job that ended well."""
    is_dear = "mlp" in case.modules or (case.spec is not None and isinstance(case.spec.recompute, FullRecompute))
    if not is_dear or case.prediction is None or not case.prediction.model_flops or case.status != "ok":
        return ""
    share = case.prediction.recompute_flops / (case.prediction.model_flops + case.prediction.recompute_flops)
    return f"{share:.0%} of the predicted FLOPs are recompute" if share > _DROP else ""


def core_attn_beside_mlp(case: Case) -> str:
    """See both modules recomputed in a job that did not run out of memory."""
    if not {"mlp", "core_attn"} <= case.modules or case.has_oom:
        return ""
    return f"recompute_modules are {','.join(sorted(case.modules))}"


def nan_with_fp8(case: Case) -> str:
    """See a loss or a gradient that is not finite, with FP8 and recompute."""
    if case.spec is None or not case.has_nan or case.spec.recompute.text == "none":
        return ""
    if "fp8" not in case.spec.compute_dtype:
        return ""
    norm = f"layernorm is {'' if 'layernorm' in case.modules else 'not '}among the modules"
    text = f"a loss or a gradient is not finite with {case.spec.compute_dtype} and recompute"
    return f"{text} {case.spec.recompute.text}; {norm}"
