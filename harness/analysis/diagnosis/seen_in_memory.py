"""Symptoms that memory shows: who ran out of it, with which settings, and what was predicted."""

from harness.analysis.diagnosis.of_run import expandable_segments
from harness.analysis.diagnosis.symptom import Facts
from harness.analysis.diagnosis.values import Case, RankFigures
from harness.units import format_bytes

_HEADROOM = 0.05  # of the device: less room on another rank tells nothing
_ON_THE_DEVICE = frozenset({"fragmentation", "capacity", "cuda_graph_pools", "outside_allocator"})


def is_device_oom(case: Case) -> bool:
    """Whether the device, or what was asked to stand for a smaller one, was full of this job alone."""
    is_stand_in = case.spec is not None and case.spec.measure.memory_limit_bytes is not None
    return case.verdict.oom_class in _ON_THE_DEVICE or (case.verdict.oom_class == "self_imposed_limit" and is_stand_in)


def one_rank_beside_headroom(facts: Facts) -> str:
    """Exactly one rank is out of memory, the others are known to hold less; expandable segments are not known to be on."""
    case = facts.case
    full = [rank for rank in case.ranks if rank.has_oom]
    if len(full) != 1 or not is_device_oom(case) or case.expandable_segments or case.is_on_cpu:
        return ""
    held = [size for rank in case.ranks if not rank.has_oom and (size := _held(rank)) is not None]
    total = _total(case)
    if not held or total is None or max(held) > total * (1 - _HEADROOM):
        return ""
    others = len(held)
    return (
        f"only rank {full[0].rank}; the other {others} held at most {format_bytes(max(held))} of {format_bytes(total)}; "
        f"{_allocator(case)}"
    )


def _allocator(case: Case) -> str:
    if case.expandable_segments is False:
        return "no expandable segments"
    if case.spec is not None and expandable_segments(case.spec.env, is_known=False):
        return "the recipe sets expandable segments; whether the job had them is not in its logs"
    return "expandable segments are not known to be on"


def with_expandable_segments(facts: Facts) -> str:
    """The device was full with expandable segments on."""
    case = facts.case
    if case.verdict.oom_class not in ("capacity", "fragmentation") or not case.expandable_segments:
        return ""
    return "PYTORCH_CUDA_ALLOC_CONF has expandable_segments:True"


def predicted_too_large(facts: Facts) -> str:
    """The likely peak does not fit; the largest part of the worst stage is named. A job that ran shows the contrary."""
    case = facts.case
    capacity = case.spec.capacity_bytes if case.spec else None
    if case.prediction is None or capacity is None or case.status == "ok":
        return ""
    if case.prediction.peak_bytes <= capacity:
        return ""
    stage = case.prediction.worst_stage
    parts = ("weights", "gradients", "optimizer", "activations", "logits", "transient", "overhead")
    largest = max(parts, key=lambda name: int(getattr(stage, name)))
    size = format_bytes(getattr(stage, largest))
    told = f"{format_bytes(case.prediction.peak_bytes)} of {format_bytes(capacity)} on stage {stage.pp_rank}"
    return f"{told}, most of it {largest} ({size})"


def layernorm_still_oom(facts: Facts) -> str:
    """Out of memory, with layernorm among the modules and nothing that frees much."""
    case = facts.case
    if not is_device_oom(case) or "layernorm" not in case.modules or case.modules & {"mlp", "moe"}:
        return ""
    told = f"recompute_modules are {','.join(sorted(case.modules))}"
    reference = facts.reference
    if reference is not None and "layernorm" not in reference.modules and reference.peak_bytes and case.peak_bytes:
        told += f"; the peak moved from {format_bytes(reference.peak_bytes)} to {format_bytes(case.peak_bytes)}"
    return told


def recompute_still_oom(facts: Facts) -> str:
    """Out of memory for want of capacity, with recompute in place."""
    case = facts.case
    if case.spec is None or case.spec.recompute.text == "none" or not is_device_oom(case):
        return ""
    if case.verdict.oom_class not in ("capacity", "self_imposed_limit"):
        return ""
    optimizer = "" if case.spec.optimizer.use_distributed_optimizer else "; the optimizer is not distributed"
    return f"recompute is {case.spec.recompute.text}{optimizer}"


def _held(rank: RankFigures) -> int | None:
    return rank.reserved_bytes if rank.reserved_bytes is not None else rank.allocated_bytes


def _total(case: Case) -> int | None:
    told = case.verdict.figures.total_bytes if case.verdict.figures else None
    return told if told is not None else case.spec.capacity_bytes if case.spec else None
