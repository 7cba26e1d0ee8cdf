"""Compares a log's loss curve with a golden's in four checks, each with its number and its limit.

The checks and their limits are those of Megatron-Bridge's evaluator, with two corrections: a missing or NaN loss is
inconclusive, and there is no correlation of few points or a flat curve.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import correlation, fmean, pstdev

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


def judge_loss(
    steps: Sequence[int], current: Sequence[float | None], golden: Sequence[float], limits: LossLimits
) -> tuple[Finding, ...]:
    """Return the findings of all four checks. ``steps``: the iterations of the points; all three have equal length."""
    skipped = int(len(golden) * limits.skip_first_percent_loss)
    kept = list(zip(steps, current, golden, strict=True))[skipped:]
    problem = _problem(kept)
    if problem:
        return tuple(Finding(name, None, None, None, None, Verdict.INCONCLUSIVE, problem) for name in LOSS_CHECKS)
    ours, theirs = [loss for _, loss, _ in kept if loss is not None], [loss for _, _, loss in kept]
    return (
        _correlation(ours, theirs, limits),
        _points([step for step, _, _ in kept], ours, theirs, limits),
        _final(ours[-1], theirs[-1], limits),
        _outliers(ours, theirs, limits),
    )


def _problem(points: Sequence[tuple[int, float | None, float]]) -> str | None:
    if not points:
        return "no loss to compare"
    missing = [step for step, value, _ in points if value is None]
    if missing:
        return f"{len(missing)} of {len(points)} losses are not in the log, the first at iteration {missing[0]}"
    broken = [(step, value) for step, value, _ in points if value is not None and not math.isfinite(value)]
    return f"the loss of iteration {broken[0][0]} is {broken[0][1]}" if broken else None


def _correlation(current: Sequence[float], golden: Sequence[float], limits: LossLimits) -> Finding:
    why = ""
    if len(golden) < limits.min_points:
        why = f"undefined: {counted(len(golden), 'point')}, but at least {limits.min_points} are needed"
    elif pstdev(golden) <= limits.flat * abs(fmean(golden)):
        why = f"undefined: the golden's curve is flat, its spread {pstdev(golden):.3g} at a mean of {fmean(golden):.5g}"
    elif len(set(current)) == 1:
        why = "undefined: the log's curve is flat"
    if why:
        return Finding("loss_correlation", None, None, None, None, Verdict.NOT_GATED, why)
    value = correlation(current, golden)
    verdict = Verdict.REGRESSION if value < limits.correlation_threshold else Verdict.PASS
    return Finding("loss_correlation", value, None, None, limits.correlation_threshold, verdict)


def _points(steps: Sequence[int], current: Sequence[float], golden: Sequence[float], limits: LossLimits) -> Finding:
    off = [
        (step, ours, theirs)
        for step, ours, theirs in zip(steps, current, golden, strict=True)
        if _difference(ours, theirs) > limits.tolerance(theirs)
    ]
    share = len(off) / len(steps)
    reason = f"{len(off)} of {len(steps)} points out of tolerance"
    if off:
        step, ours, theirs = max(off, key=lambda point: _difference(point[1], point[2]))
        reason += f"; the largest difference is at iteration {step}: {ours:.6g}, golden {theirs:.6g}"
    verdict = Verdict.REGRESSION if share > limits.max_outlier_ratio else Verdict.PASS
    return Finding("loss_points", share, None, None, limits.max_outlier_ratio, verdict, reason)


def _final(current: float, golden: float, limits: LossLimits) -> Finding:
    verdict = Verdict.REGRESSION if _difference(current, golden) > limits.final_loss_tolerance else Verdict.PASS
    change = (current - golden) / golden if golden else None
    return Finding("loss_final", current, golden, change, limits.final_loss_tolerance, verdict)


def _outliers(current: Sequence[float], golden: Sequence[float], limits: LossLimits) -> Finding:
    residuals = [ours - theirs for ours, theirs in zip(current, golden, strict=True)]
    middle, spread = fmean(residuals), pstdev(residuals)
    floor = _ROUNDING * max(abs(value) for value in golden)
    count = sum(abs(value - middle) > max(limits.outlier_threshold * spread, floor) for value in residuals)
    share = count / len(residuals)
    verdict = Verdict.REGRESSION if share > limits.max_outlier_ratio else Verdict.PASS
    reason = f"{count} of {len(residuals)} residuals beyond {limits.outlier_threshold:g} standard deviations"
    return Finding("loss_outliers", share, None, None, limits.max_outlier_ratio, verdict, reason)


def _difference(current: float, golden: float) -> float:
    """Return the relative difference; for a golden of 0 the absolute difference."""
    return abs(current - golden) / abs(golden) if golden else abs(current)
