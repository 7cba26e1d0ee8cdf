"""How sure a change of a figure is that differs from run to run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis import statistics
from harness.analysis.night.noise import KnownNoise
from harness.analysis.night.noise_sources import Noises, Variance, noises
from harness.analysis.night.values import Evidence
from harness.analysis.student_t import t_upper_tail

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
    """How likely runs that say ``values`` (one figure each, one at least) lie this far from ``golden`` by noise alone.

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
    spread = statistics.sample_stdev(changes)
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
    """Student's t of ``change`` over its standard error, the sum of ``shares``; degrees by Satterthwaite (1946).

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
    told = [
        "these runs" if tonight else "",
        "the golden's runs" if golden else "",
        f"{nights} night{'s' * (nights > 1)}" if history else "",
    ]
    return "noise from " + " and ".join(filter(None, told))
