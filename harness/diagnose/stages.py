"""Compares memory with the prediction per pipeline stage."""

from harness.diagnose.of_log import stage_of
from harness.diagnose.values import NO_PREDICTION, Case, Expected
from harness.records.prediction import StagePrediction
from harness.units import format_bytes

_MOST_PARTS = 4
_FULL_STEPS = 2  # the second one has the optimizer's states


def needed_bytes(case: Case) -> int | None:
    """Return the tensors of the failed rank plus the failed request; without a message, its recorded peak."""
    figures = case.verdict.figures
    if figures and figures.allocated_bytes is not None:
        return figures.allocated_bytes + (figures.tried_bytes or 0)
    rank = case.failed.rank if case.failed else None
    held = case.peak_bytes
    if rank is not None:
        held = next((figures.allocated_bytes for figures in case.ranks if figures.rank == rank), None)
    return None if held is None else held + (case.verdict.request_bytes or 0 if case.has_oom else 0)


def stage_of_failure(case: Case) -> StagePrediction | None:
    """Return the prediction for the stage of the failed rank, else of the fullest rank, else for the worst stage."""
    if case.prediction is None:
        return None
    peak = case.peak_bytes
    fullest = (ours.rank for ours in case.ranks if peak is not None and ours.allocated_bytes == peak)
    rank = case.failed.rank if case.failed else next(fullest, None)
    recorded = next((ours.pp_rank for ours in case.ranks if ours.rank == rank and ours.pp_rank is not None), None)
    pp_rank = recorded if recorded is not None else stage_of(rank, case.spec) if rank is not None else None
    found = next((stage for stage in case.prediction.stages if stage.pp_rank == pp_rank), None)
    return found or max(case.prediction.stages, key=lambda stage: stage.with_pool)


def predicted_bytes(case: Case, stage: StagePrediction) -> int:
    """Return the predicted peak as the job's own figure counts it: by torch's message, or by its counters."""
    figures = case.verdict.figures
    return stage.with_pool if figures and figures.allocated_bytes is not None else stage.measurable


def available_bytes(case: Case) -> int | None:
    """Return what the allocator had and could have; in a capture, which frees no cached memory, tensors and free."""
    figures = case.verdict.figures
    if figures is None or figures.reserved_bytes is None or figures.free_bytes is None:
        return None
    had = figures.free_bytes + ((figures.allocated_bytes or 0) if case.is_captured else figures.reserved_bytes)
    return had if figures.allowed_bytes is None else min(had, figures.allowed_bytes)


def refuted(case: Case) -> str:
    """Say why the prediction is too high, if steps ran where none fits, and this one was not larger; else empty."""
    stage, needed, available = stage_of_failure(case), needed_bytes(case), available_bytes(case)
    graphs = case.spec.cuda_graph if case.spec else None
    least = 1 + graphs.warmup_steps if graphs and graphs.impl != "none" else _FULL_STEPS  # before, graphs hold nothing
    if stage is None or needed is None or available is None or case.num_iterations < least:
        return ""
    predicted = predicted_bytes(case, stage)
    ran = f"{case.num_iterations} iterations ran with {format_bytes(available)}"
    text = f"{ran}, so the predicted {format_bytes(predicted)} are too many for this job"
    return text if needed <= available < predicted else ""


def unexplained_bytes(case: Case) -> int | None:
    """Return what the failed rank needed beyond the prediction of a step; None if either is unknown, or no step ran."""
    if not case.verdict.has_activations:
        return None
    needed, stage = needed_bytes(case), stage_of_failure(case)
    return None if needed is None or stage is None else needed - predicted_bytes(case, stage)


def expected(case: Case) -> Expected:
    """Return the prediction for the stage that failed, with what the rank needed."""
    stage = stage_of_failure(case)
    problem = "" if stage else case.no_prediction
    return Expected(
        stage=stage, needed_bytes=needed_bytes(case), unexplained_bytes=unexplained_bytes(case), problem=problem
    )


def stage_evidence(case: Case) -> tuple[str, ...]:
    """Return at most two sentences: the prediction of a step, or of what stands before it, and the memory needed."""
    stage, needed = stage_of_failure(case), needed_bytes(case)
    if stage is None:
        return (f"{NO_PREDICTION}{case.no_prediction}.",) if case.no_prediction and case.spec else ()
    parts, total, when = stage.parts, predicted_bytes(case, stage), ""
    parts["CUDA graphs"] = total - stage.total
    if not case.verdict.has_activations:
        parts, when = {name: parts[name] for name in ("weights", "gradients", "optimizer")}, " before the first step"
        total = sum(parts.values())
    most = sorted(parts.items(), key=lambda part: -part[1])[:_MOST_PARTS]
    listed = ", ".join(f"{name} {format_bytes(size)}" for name, size in most if size > 0)
    found = f"Predicted for pipeline stage {stage.pp_rank}{when}: {format_bytes(total)} ({listed})."
    if needed is None:
        return (found,)
    who = "The rank needed" if case.has_oom else "The fullest rank held"
    more = f"{format_bytes(abs(needed - total))} {'more' if needed >= total else 'less'} than predicted"
    return found, ": ".join(filter(None, (f"{who} {format_bytes(needed)}", more, refuted(case)))) + "."
