"""The rules for time and memory, and their evidence."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.judging import statistics as sample_statistics
from harness.judging.gate import Finding, Verdict, compare_values
from harness.judging.metrics import Metric
from harness.judging.statistics import t_upper_tail
from harness.night.noise import KnownNoise, Noises, Variance, noises
from harness.night.values import CaseFinding, Evidence
from harness.units import format_share


def judge_memory(
    metric: Metric, values: Sequence[float | None], together: float | None, golden: float, threshold: float
) -> CaseFinding:
    """Judge one figure over all runs: a regression or improvement needs every run beyond the threshold.

    ``together``: the figure of all runs, the highest peak. Some runs worse than allowed and others not is inconclusive;
    some better and none worse is a pass.
    """
    each = [compare_values(metric, value, golden, threshold) for value in values]
    whole = compare_values(metric, together, golden, threshold)
    verdicts = {finding.verdict for finding in each}
    verdict, reason = whole.verdict, whole.reason
    if len(verdicts) > 1 and Verdict.INCONCLUSIVE not in verdicts:
        worse = [finding for finding in each if finding.verdict is Verdict.REGRESSION]
        verdict = Verdict.INCONCLUSIVE if worse else Verdict.PASS
        changes = ", ".join(f"{finding.change:+.1%}" for finding in each if finding.change is not None)
        reason = f"{len(worse)} of {len(each)} runs are worse than allowed: {changes}" if worse else ""
    return CaseFinding(**vars(replace(whole, verdict=verdict, reason=reason)))


# Variance of the median of n normal values over that of their mean; the limit holds for any n from above.
_MEDIAN_OVER_MEAN = {1: 1.0, 2: 1.0, 3: 1.346, 4: 1.193, 5: 1.434}
_MEDIAN_OVER_MEAN_LIMIT = math.pi / 2


@dataclass(frozen=True)
class Reference:
    """The golden's figure: the median of ``num_runs`` runs, whose relative standard deviation is ``spread``, if known."""

    value: float
    spread: float | None
    num_runs: int


def evidence_of(values: Sequence[float], golden: Reference, history: KnownNoise | None) -> Evidence:
    """Return how likely noise alone moves runs with ``values`` (one per run, at least one) this far from ``golden``.

    The p-value is one-sided, in the direction of the change of their mean against the golden. Where there are nights
    since the golden it is twice the smaller of two: against the golden, and against the level of those nights, which is
    known better than a golden of a few runs. None where nothing is known of the noise.
    """
    tonight = _tonight([value / golden.value for value in values])
    theirs = (
        Variance(golden.spread**2, golden.num_runs - 1) if golden.spread is not None and golden.num_runs > 1 else None
    )
    found = noises(tonight, theirs, history)
    if found.ours is None and found.nights is None:
        return Evidence(None, None, "noise unknown: one run on each side, no history", len(values), golden.num_runs)
    p_value = _p_value(values, golden, history, found)
    one_run = found.stretch * found.ours.value if found.ours else 0.0
    noise = math.sqrt(one_run + (found.nights.value if found.nights else 0.0))
    return Evidence(p_value, noise, _basis(tonight, theirs, history), len(values), golden.num_runs)


def _tonight(changes: Sequence[float]) -> Variance | None:
    spread = sample_statistics.sample_stdev(changes)
    return None if spread is None else Variance(spread**2, len(changes) - 1)


def _p_value(values: Sequence[float], golden: Reference, history: KnownNoise | None, found: Noises) -> float:
    mean = math.fsum(values) / len(values)
    direction = 1.0 if mean >= golden.value else -1.0
    ours = (found.stretch / len(values), found.ours)
    median = _MEDIAN_OVER_MEAN.get(golden.num_runs, _MEDIAN_OVER_MEAN_LIMIT)
    against_golden = _tail(
        direction * (mean / golden.value - 1), [ours, (median / golden.num_runs, found.golden), (2.0, found.nights)]
    )
    if history is None or history.level is None:
        return against_golden
    against_nights = _tail(
        direction * (mean - history.level) / golden.value,
        [ours, (1 / history.num_runs, found.history), (1 + 1 / history.num_nights, found.nights)],
    )
    return min(1.0, 2 * min(against_golden, against_nights))


def _tail(change: float, shares: Sequence[tuple[float, Variance | None]]) -> float:
    """Return the tail of Student's t for ``change``; ``shares`` add up to its variance, degrees by Satterthwaite (1946).

    Shares of the same variance are added first: they are one estimate.
    """
    weights: dict[Variance, float] = {}
    for weight, variance in shares:
        if variance:
            weights[variance] = weights.get(variance, 0.0) + weight
    parts = [(weight * variance.value, variance.degrees) for variance, weight in weights.items()]
    error = sum(part for part, _ in parts)
    if error == 0:
        return 0.0 if change > 0 else 1.0
    t = change / math.sqrt(error)
    tail = t_upper_tail(abs(t), error**2 / sum(part**2 / degrees for part, degrees in parts))
    return tail if t >= 0 else 1 - tail


def _basis(tonight: Variance | None, golden: Variance | None, history: KnownNoise | None) -> str:
    nights = history.night_df + 1 if history else 0
    sources = [
        "these runs" if tonight else "",
        "the golden's runs" if golden else "",
        f"{nights} night{'s' * (nights > 1)}" if history else "",
    ]
    return "noise from " + " and ".join(filter(None, sources))


SMALLEST_EFFECT = 0.02
"""A smaller change is no regression, however sure it is; a threshold below it takes its place."""

EVERY_RUN_ALPHA = 0.01
MIN_RUNS_BEYOND = 3
"""Runs that must all be beyond the threshold where :data:`EVERY_RUN_ALPHA` is evidence enough."""

SUSPICION_ALPHA = 0.01
_SUSPICION_SHARE = 0.5


@dataclass(frozen=True)
class TimeLimits:
    """``threshold``: the relative change that alone calls for attention; ``alpha``: the largest p-value that is evidence."""

    threshold: float
    alpha: float

    def smallest_change(self, history: KnownNoise | None) -> float:
        """Return the relative change beyond which evidence makes a verdict."""
        known = history is not None and history.knows_nights
        return min(SMALLEST_EFFECT, self.threshold) if known else self.threshold


def judge_time(
    metric: Metric, values: Sequence[float], golden: Reference, history: KnownNoise | None, limits: TimeLimits
) -> CaseFinding:
    """Judge one figure. ``values``: one rate per run; the finding's ``current`` is the rate at their mean step time."""
    mean = statistics.harmonic_mean(values) if values else None
    plain = compare_values(metric, mean, golden.value, limits.threshold)
    if plain.change is None:
        return _finding(plain, plain.verdict, plain.reason, None)
    smallest = limits.smallest_change(history)
    evidence = replace(evidence_of(values, golden, history), smallest_change=smallest)
    worse = is_worse(metric, plain.change)
    wanted = Verdict.REGRESSION if worse else Verdict.IMPROVEMENT
    beyond = [compare_values(metric, value, golden.value, limits.threshold).verdict is wanted for value in values]
    shown = evidence.p_value is not None and evidence.p_value <= limits.alpha
    large = compare_values(metric, mean, golden.value, smallest).verdict is wanted
    if (shown and large) or _is_every_run_beyond(beyond, evidence):
        return _finding(plain, wanted, "", evidence)
    if plain.verdict is Verdict.PASS:
        reason = f"unlikely to be noise, but smaller than {smallest * 100:.3g} %" if shown else ""
        return _finding(plain, Verdict.PASS, reason, evidence)
    reason = f"beyond {limits.threshold * 100:.3g} %, but {_doubt(evidence, limits)}"
    return _finding(plain, Verdict.INCONCLUSIVE if worse else Verdict.PASS, reason, evidence)


def is_suspicious(metric: Metric, finding: CaseFinding) -> bool:
    """Whether more runs should confirm a regression: it is one, exceeds the threshold, or is half established."""
    change, evidence = finding.change, finding.evidence
    if change is None or evidence is None or evidence.smallest_change is None or not is_worse(metric, change):
        return False
    if finding.verdict in (Verdict.REGRESSION, Verdict.INCONCLUSIVE):
        return True
    likely = abs(change) >= evidence.smallest_change * _SUSPICION_SHARE
    return likely and evidence.p_value is not None and evidence.p_value <= SUSPICION_ALPHA


def is_worse(metric: Metric, change: float) -> bool:
    """Return whether a relative change of this figure is a worsening."""
    return change != 0 and (metric.better == "equal" or (change > 0) == (metric.better == "lower"))


def _is_every_run_beyond(beyond: Sequence[bool], evidence: Evidence) -> bool:
    enough = evidence.p_value is not None and evidence.p_value <= EVERY_RUN_ALPHA
    return enough and len(beyond) >= MIN_RUNS_BEYOND and all(beyond)


def _doubt(evidence: Evidence, limits: TimeLimits) -> str:
    if evidence.p_value is None or evidence.noise is None:
        return f"{evidence.basis}; repeat it"
    return (
        f"one run varies by {format_share(evidence.noise)} ({evidence.basis}): p = {evidence.p_value:.2g} is "
        f"above the limit of {limits.alpha:.2g}"
    )


def _finding(plain: Finding, verdict: Verdict, reason: str, evidence: Evidence | None) -> CaseFinding:
    return CaseFinding(**vars(replace(plain, verdict=verdict, reason=reason)), evidence=evidence)
