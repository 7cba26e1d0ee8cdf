"""Symptoms that two jobs show, or one whose prediction stands beside it: what a setting costs.

A job that ran out of memory is not told to win speed back by what would need more of it.
"""

from harness.analysis.diagnosis.symptom import Facts
from harness.analysis.diagnosis.values import Case
from harness.spec.recompute import FullRecompute
from harness.units import format_bytes, format_percent

_DROP = 0.15  # of the utilization, from which mlp is named as its cause
NOTICEABLE = 0.02  # below it runs differ anyway


def loss_of_speed(facts: Facts) -> float | None:
    """By how much less TFLOP/s/GPU the job reaches than the other; None where either is not known."""
    reference = facts.reference
    if reference is None or not facts.case.tflops_per_gpu or not reference.tflops_per_gpu:
        return None
    return 1 - facts.case.tflops_per_gpu / reference.tflops_per_gpu


def drop_with_mlp(facts: Facts) -> str:
    """Measured against a job without mlp; alone, the FLOPs that recompute adds are too many."""
    case, reference = facts.case, facts.reference
    if "mlp" not in case.modules or case.has_oom:
        return ""
    lost = loss_of_speed(facts)
    if lost is not None and reference is not None and "mlp" not in reference.modules:
        return _versus(case, reference) if lost > _DROP else ""
    return _by_flops(case)


def _by_flops(case: Case) -> str:
    """Recompute's share of all that is computed; only where nothing was measured to hold the job against."""
    if case.prediction is None or not case.prediction.model_flops or case.status != "ok":
        return ""
    executed = case.prediction.model_flops + case.prediction.recompute_flops
    share = case.prediction.recompute_flops / executed
    return f"{share:.0%} of the FLOPs are recomputed ones, by the prediction" if share > _DROP else ""


def core_attn_beside_mlp(facts: Facts) -> str:
    """Both modules; against mlp alone where there is such a job."""
    case, reference = facts.case, facts.reference
    if not {"mlp", "core_attn"} <= case.modules or case.has_oom:
        return ""
    if reference is not None and reference.modules == case.modules - {"core_attn"}:
        lost = loss_of_speed(facts)
        return _versus(case, reference) if lost is not None and lost > 0 else ""
    return f"recompute_modules are {','.join(sorted(case.modules))}"


def slow_with_full(facts: Facts) -> str:
    """Against a job without full recompute; alone, by the FLOPs."""
    case, reference = facts.case, facts.reference
    if case.spec is None or not isinstance(case.spec.recompute, FullRecompute) or case.has_oom:
        return ""
    lost = loss_of_speed(facts)
    if lost is not None and reference is not None:
        is_other = reference.spec is None or not isinstance(reference.spec.recompute, FullRecompute)
        return _versus(case, reference) if is_other and lost > NOTICEABLE else ""
    return _by_flops(case)


def more_tensor_parallelism(facts: Facts) -> str:
    """Slower than a job with less TP."""
    case, reference, lost = facts.case, facts.reference, loss_of_speed(facts)
    if (
        case.has_oom
        or case.spec is None
        or reference is None
        or reference.spec is None
        or lost is None
        or lost <= _DROP
    ):
        return ""
    ours, theirs = (one.parallelism.tensor_model_parallel_size for one in (case.spec, reference.spec))
    return f"TP {ours} against {theirs}: {_versus(case, reference)}" if ours > theirs else ""


def virtual_stages(facts: Facts) -> str:
    """Two jobs that differ in interleaving, one of which ran out of memory."""
    case, reference = facts.case, facts.reference
    if case.spec is None or reference is None or reference.spec is None or case.has_oom == reference.has_oom:
        return ""
    ours, theirs = (one.parallelism.virtual_pipeline_model_parallel_size for one in (case.spec, reference.spec))
    if ours == theirs:
        return ""
    told = f"VPP {ours} here, {theirs} there"
    if case.peak_bytes is not None and reference.peak_bytes is not None:
        told += f"; peaks {format_bytes(case.peak_bytes)} and {format_bytes(reference.peak_bytes)}"
    if case.expandable_segments != reference.expandable_segments:
        told += "; expandable segments differ too"
    return told


def _versus(case: Case, reference: Case) -> str:
    ours, theirs = case.tflops_per_gpu, reference.tflops_per_gpu
    assert ours is not None and theirs is not None
    return f"{ours:.1f} TFLOP/s/GPU against {theirs:.1f} of {reference.name} ({format_percent(ours / theirs - 1)})"
