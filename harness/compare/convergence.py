"""Compares a log's losses and gradients with a golden's: four checks of the curve, each with its number and its limit.

The checks of the curve and their limits are those of Megatron-Bridge's evaluator, with two corrections: a missing or
NaN loss is inconclusive, and there is no correlation of few points or a flat curve.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import correlation, fmean, pstdev

from harness.experiment.experiment import MIN_STEPS
from harness.foreign.golden import ForeignGolden
from harness.foreign.log import ForeignLog
from harness.judge.gate import Finding, Verdict
from harness.units import counted

LOSS_CHECKS = ("loss_correlation", "loss_points", "loss_final", "loss_outliers")
# Smaller deviations of residuals, as a share of the loss, are rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class LossLimits:
    """The accepted differences. Tolerances are relative, for losses above 2, above 0.5 and below.

    There is no correlation with fewer points than ``min_points``, or if the golden's standard deviation is a smaller
    share of its mean than ``flat``: the correlation of noise is anything from -1 to 1.
    """

    correlation_threshold: float = 0.95
    high_loss_tolerance: float = 0.10
    medium_loss_tolerance: float = 0.05
    low_loss_tolerance: float = 0.02
    final_loss_tolerance: float = 0.05
    max_outlier_ratio: float = 0.1
    outlier_threshold: float = 3.0
    skip_first_percent_loss: float = 0.20
    min_points: int = 8
    flat: float = 0.01

    def tolerance(self, golden: float) -> float:
        """Return the relative tolerance of one point."""
        if golden > 2.0:
            return self.high_loss_tolerance
        return self.medium_loss_tolerance if golden > 0.5 else self.low_loss_tolerance


LOSS_LIMITS = LossLimits()


def judge_losses(log: ForeignLog, golden: ForeignGolden) -> tuple[Finding, ...]:
    """Compare all steps for which the golden has a loss, up to the last iteration of the log."""
    known = {row.number: row.loss for row in log.iterations}
    last = max(known, default=0)
    stored = {number: step.loss for number, step in golden.steps.items() if step.loss is not None and number <= last}
    return judge_loss([*stored], [known.get(number) for number in stored], [*stored.values()])


def judge_loss(
    steps: Sequence[int], current: Sequence[float | None], golden: Sequence[float], limits: LossLimits = LOSS_LIMITS
) -> tuple[Finding, ...]:
    """Return the findings of all four checks. ``steps``: the iterations of the points; all three have equal length."""
    skipped = int(len(golden) * limits.skip_first_percent_loss)
    kept = list(zip(steps, current, golden, strict=True))[skipped:]
    if problem := _problem(kept):
        return tuple(Finding(name, None, None, None, None, Verdict.INCONCLUSIVE, problem) for name in LOSS_CHECKS)
    points = [(step, loss, stored) for step, loss, stored in kept if loss is not None]
    ours, theirs = [loss for _, loss, _ in points], [stored for *_, stored in points]
    last = _check("loss_final", _difference(ours[-1], theirs[-1]), limits.final_loss_tolerance)
    change = (ours[-1] - theirs[-1]) / theirs[-1] if theirs[-1] else None
    final = Finding("loss_final", ours[-1], theirs[-1], change, last.threshold, last.verdict)
    return _correlation(ours, theirs, limits), _points(points, limits), final, _outliers(ours, theirs, limits)


def _problem(points: Sequence[tuple[int, float | None, float]]) -> str | None:
    missing = [step for step, value, _ in points if value is None]
    broken = [(step, value) for step, value, _ in points if value is not None and not math.isfinite(value)]
    if missing:
        return f"{len(missing)} of {len(points)} losses are not in the log, the first at iteration {missing[0]}"
    if broken:
        return f"the loss of iteration {broken[0][0]} is {broken[0][1]}"
    return None if points else "no loss to compare"


def _check(name: str, value: float, most: float, reason: str = "") -> Finding:
    return Finding(name, value, None, None, most, Verdict.REGRESSION if value > most else Verdict.PASS, reason)


def _correlation(current: Sequence[float], golden: Sequence[float], limits: LossLimits) -> Finding:
    why = ""
    if len(golden) < limits.min_points:
        why = f"undefined: {counted(len(golden), 'point')}, but at least {limits.min_points} are needed"
    elif pstdev(golden) <= limits.flat * abs(fmean(golden)):
        why = f"undefined: the reference is flat, its spread {pstdev(golden):.3g} at a mean of {fmean(golden):.5g}"
    elif len(set(current)) == 1:
        why = "undefined: the log's curve is flat"
    if why:
        return Finding("loss_correlation", None, None, None, None, Verdict.NOT_GATED, why)
    value = correlation(current, golden)
    verdict = Verdict.REGRESSION if value < limits.correlation_threshold else Verdict.PASS
    return Finding("loss_correlation", value, None, None, limits.correlation_threshold, verdict)


def _points(points: Sequence[tuple[int, float, float]], limits: LossLimits) -> Finding:
    off = [(_difference(a, b), step, a, b) for step, a, b in points if _difference(a, b) > limits.tolerance(b)]
    reason = f"{len(off)} of {len(points)} points out of tolerance"
    if off:
        _, step, ours, theirs = max(off)
        reason += f"; the largest difference is at iteration {step}: {ours:.6g}, reference {theirs:.6g}"
    return _check("loss_points", len(off) / len(points), limits.max_outlier_ratio, reason)


def _outliers(current: Sequence[float], golden: Sequence[float], limits: LossLimits) -> Finding:
    residuals = [ours - theirs for ours, theirs in zip(current, golden, strict=True)]
    middle, spread = fmean(residuals), pstdev(residuals)
    floor = _ROUNDING * max(abs(value) for value in golden)
    count = sum(abs(value - middle) > max(limits.outlier_threshold * spread, floor) for value in residuals)
    reason = f"{count} of {len(residuals)} residuals beyond {limits.outlier_threshold:g} standard deviations"
    return _check("loss_outliers", count / len(residuals), limits.max_outlier_ratio, reason)


def _difference(current: float, golden: float) -> float:
    """Return the relative difference; for a golden of 0 the absolute difference."""
    return abs(current - golden) / abs(golden) if golden else abs(current)


def judge_gradients(log: ForeignLog) -> Iterator[Finding]:
    """Check that every printed gradient norm is finite. The value is the number of those that are not."""
    printed = [(row, row.grad_norm) for row in log.iterations if row.grad_norm is not None]
    broken = [(row, norm) for row, norm in printed if not math.isfinite(norm)]
    reason = f"{len(printed)} iterations"
    if broken:
        first, norm = broken[0]
        reason = f"{len(broken)} of {len(printed)}, the first is {norm} in iteration {first.number} ({first.where})"
    if printed:
        yield _check("grad_norm_non_finite", len(broken), 0, reason)


def zero_losses(log: ForeignLog) -> Iterator[str]:
    """Yield that every loss is exactly 0, as when all labels are masked."""
    losses = [row.loss for row in log.iterations if row.loss is not None]
    if len(losses) >= MIN_STEPS and not any(losses):
        yield f"the loss is 0 in all {len(losses)} iterations that print one: the job trained nothing"


def missing_losses(log: ForeignLog, golden: ForeignGolden) -> Iterator[str]:
    """Yield which losses are missing. Both trainers omit a loss that is NaN."""
    due = [row for row in log.iterations if row.skipped_iterations == 0]
    broken = [row for row in due if row.loss is None or row.is_loss_broken]
    is_text = log.num_lines > 0  # not a run, whose ranks may record no loss
    if not broken or not ((golden.has_loss and is_text) or any(row.loss is not None for row in due)):
        return
    first = broken[0]
    what = "missing, which can mean NaN" if first.loss is None else f"{first.loss}"
    if first.nan_iterations:
        what = f"NaN in {first.nan_iterations} iterations"
    rest = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
    yield f"the loss of iteration {first.number}{rest} is {what} ({first.where})"
