"""Symptoms that settings show, with or without a run."""

from harness.analysis.diagnosis.symptom import Facts
from harness.spec.graphs import captures_iteration
from harness.spec.recompute import FullRecompute


def full_recompute_with_graphs(facts: Facts) -> str:
    """Whole layers, and graphs of less than the iteration."""
    spec = facts.case.spec
    if spec is None or not isinstance(spec.recompute, FullRecompute) or spec.cuda_graph.impl == "none":
        return ""
    if captures_iteration(spec.cuda_graph):
        return ""
    scope = ",".join(spec.cuda_graph.scope) or "whole layers"
    return f"recompute {spec.recompute.text} with cuda_graph_impl={spec.cuda_graph.impl} of {scope}"


def pipeline_with_offloading(facts: Facts) -> str:
    """Whole layers offloaded over several stages."""
    spec = facts.case.spec
    if spec is None or not spec.offload.cpu_offloading_num_layers:
        return ""
    stages = spec.parallelism.pipeline_model_parallel_size
    return f"{spec.offload.cpu_offloading_num_layers} layers are offloaded with PP {stages}" if stages > 1 else ""


def user_buffers_with_expandable_segments(facts: Facts) -> str:
    """Both asked for."""
    spec = facts.case.spec
    if spec is None or not spec.ddp.nccl_ub or not facts.case.expandable_segments:
        return ""
    return "ddp.nccl_ub is on, and so are expandable segments"


def nan_with_fp8(facts: Facts) -> str:
    """A loss or a gradient that is not finite, FP8 and recompute."""
    case = facts.case
    if case.spec is None or not case.has_nan or case.spec.recompute.text == "none":
        return ""
    if "fp8" not in case.spec.compute_dtype:
        return ""
    with_norm = (
        "layernorm is among the modules" if "layernorm" in case.modules else "layernorm is not among the modules"
    )
    return f"a loss or a gradient is not finite with {case.spec.compute_dtype} and recompute {case.spec.recompute.text}; {with_norm}"
