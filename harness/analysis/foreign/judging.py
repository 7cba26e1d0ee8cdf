"""A log against golden values from start to end: window, speed, memory, gradients and losses, one outcome."""

import math
from collections.abc import Iterable
from dataclasses import replace

from harness.analysis.compare import WindowOptions
from harness.analysis.foreign.convergence import LossLimits, judge_loss
from harness.analysis.foreign.memory import judge_memory, worst_ranks
from harness.analysis.foreign.speed import judge_speed, window_of
from harness.analysis.foreign.values import ForeignComparison, ForeignThresholds
from harness.analysis.gate import Comparison, Finding, Verdict, overall
from harness.records.foreign.golden_values import ForeignGolden
from harness.records.foreign.values import ForeignLog


def judge_log(
    log: ForeignLog,
    golden: ForeignGolden,
    window: WindowOptions,
    allowed: ForeignThresholds,
    loss_limits: LossLimits | None = None,
    failure: str | None = None,
) -> ForeignComparison:
    """All findings and the outcome. ``loss_limits`` None: losses are not held against the golden's.

    A log that is of no whole run, or in which a loss is NaN or missing, leaves nothing to conclude of speed and memory.
    ``failure``: how the job ended, where the log says that it failed.
    """
    steps = window_of(golden, window)
    speed = judge_speed(log, golden, steps, allowed)
    memory = judge_memory(log, golden, allowed)
    doubts = tuple(_doubts(log, golden, failure))
    findings = (
        *_doubted((*speed.findings, *memory.findings), doubts),
        *_gradients(log),
        *(_losses(log, golden, loss_limits) if loss_limits else ()),
    )
    notes = (*log.notes, *golden.notes, *speed.notes, *memory.notes)
    return ForeignComparison(
        log, golden, steps, Comparison(findings, overall(findings)), worst_ranks(log), doubts, notes
    )


def _doubted(findings: Iterable[Finding], doubts: tuple[str, ...]) -> list[Finding]:
    """Findings that were judged say what stands against that; reasons of their own go first."""
    if not doubts:
        return list(findings)
    return [
        one
        if one.verdict in (Verdict.NOT_GATED, Verdict.INCONCLUSIVE)
        else replace(one, change=None, verdict=Verdict.INCONCLUSIVE, reason="; ".join(doubts))
        for one in findings
    ]


def _doubts(log: ForeignLog, golden: ForeignGolden, failure: str | None) -> Iterable[str]:
    if failure:
        yield failure
    if log.truncated:
        yield log.truncated
    missing = _missing_losses(log, golden)
    if missing:
        yield missing


def _missing_losses(log: ForeignLog, golden: ForeignGolden) -> str | None:
    """Both trainers leave the loss out of the line where it is NaN."""
    due = [one for one in log.iterations if one.skipped_iterations == 0]
    told = [one for one in due if one.loss is not None]
    if not told and not golden.has_loss:
        return None
    broken = [one for one in due if one.loss is None or not math.isfinite(one.loss) or one.nan_iterations]
    if not broken:
        return None
    first = broken[0]
    what = "missing, as where it is NaN" if first.loss is None else f"{first.loss}"
    if first.nan_iterations:
        what = f"NaN in {first.nan_iterations} iterations"
    rest = f" and of {len(broken) - 1} more" if len(broken) > 1 else ""
    return f"the loss of iteration {first.number}{rest} is {what} ({first.where})"


def _gradients(log: ForeignLog) -> tuple[Finding, ...]:
    """The norm of the gradients must be a number wherever it is printed. The value is how many are none."""
    told = [one for one in log.iterations if one.grad_norm is not None]
    if not told:
        return ()
    broken = [one for one in told if one.grad_norm is not None and not math.isfinite(one.grad_norm)]
    if not broken:
        return (Finding("grad_norm_non_finite", 0, None, None, 0, Verdict.PASS, f"{len(told)} iterations"),)
    first = broken[0]
    reason = f"{len(broken)} of {len(told)}, first {first.grad_norm} in iteration {first.number} ({first.where})"
    return (Finding("grad_norm_non_finite", len(broken), None, None, 0, Verdict.REGRESSION, reason),)


def _losses(log: ForeignLog, golden: ForeignGolden, limits: LossLimits) -> tuple[Finding, ...]:
    """All steps of which the golden has a loss."""
    known = {one.number: one.loss for one in log.iterations}
    steps = [number for number, step in golden.steps.items() if step.loss is not None]
    current = [known.get(number) for number in steps]
    return judge_loss(steps, current, [step.loss for step in golden.steps.values() if step.loss is not None], limits)
