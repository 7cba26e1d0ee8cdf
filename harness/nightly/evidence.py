"""How likely noise alone moves the runs of a night as far from the golden as they are."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.judge.statistics import of_variances, sample_stdev
from harness.nightly.known_noise import KnownNoise
from harness.nightly.noise import UNKNOWN_NIGHTS, Noises, Variance, noises
from harness.nightly.values import Evidence

# Variance of the median of n normal values over that of their mean; the limit holds for any n from above.
_MEDIAN_OVER_MEAN = {1: 1.0, 2: 1.0, 3: 1.346, 4: 1.193, 5: 1.434}
_MEDIAN_OVER_MEAN_LIMIT = math.pi / 2


@dataclass(frozen=True)
class Reference:
    """The golden's figure: the median of ``num_runs`` runs, with their relative standard deviation ``spread``."""

    value: float
    spread: float | None
    num_runs: int


def evidence_of(values: Sequence[float], golden: Reference, history: KnownNoise | None) -> Evidence:
    """Return how likely noise alone moves runs with ``values`` (one per run, at least one) this far from ``golden``.

    The p-value is one-sided, in the direction of the change of their mean against the golden. Where there are nights
    since the golden it is twice the smaller of two: against the golden, and against the level of those nights, which is
    known better than a golden of a few runs. A night that may be noisier than all before needs the evidence that such a
    night needs, times its chance. None where nothing is known of the noise.
    """
    tonight = _tonight([value / golden.value for value in values])
    theirs = (
        Variance(golden.spread**2, golden.num_runs - 1) if golden.spread is not None and golden.num_runs > 1 else None
    )
    found = noises(tonight, theirs, history)
    if found.ours is None and not found.night_variance:
        return Evidence(None, None, "noise unknown: one run on each side, no history", len(values), golden.num_runs)
    mean = statistics.fmean(values)
    p_value = _p_value(mean, len(values), golden, history, found)
    if found.noisier:
        weight, variance = found.noisier
        p_value = max(p_value, weight * _p_value(mean, len(values), golden, history, replace(found, ours=variance)))
    if_nights_differ = None
    if not found.are_nights_known:
        wider = replace(found, nights=((1.0, UNKNOWN_NIGHTS),))
        if_nights_differ = _p_value(mean, len(values), golden, history, wider)
    one_run = found.ours.value if found.ours else 0.0
    noise = math.sqrt(one_run + (found.night_variance if found.are_nights_known else 0.0))
    return Evidence(
        max(p_value, if_nights_differ or 0.0),
        noise,
        _basis(tonight, theirs, history),
        len(values),
        golden.num_runs,
        p_if_nights_differ=if_nights_differ,
    )


def _tonight(changes: Sequence[float]) -> Variance | None:
    spread = sample_stdev(changes)
    return None if spread is None else Variance(spread**2, len(changes) - 1)


def _p_value(mean: float, num_runs: int, golden: Reference, history: KnownNoise | None, found: Noises) -> float:
    direction = 1.0 if mean >= golden.value else -1.0
    ours = (1 / num_runs, found.ours)
    median = _MEDIAN_OVER_MEAN.get(golden.num_runs, _MEDIAN_OVER_MEAN_LIMIT)
    change = direction * (mean / golden.value - 1)
    against_golden = _over_shapes(change, [ours, (median / golden.num_runs, found.golden)], 2.0, found)
    if history is None or history.level is None:
        return against_golden
    change = direction * (mean - history.level) / golden.value
    by_nights = 1 + 1 / history.effective_nights
    against_nights = _over_shapes(change, [ours, (1 / history.num_runs, found.history)], by_nights, found)
    return min(1.0, 2 * min(against_golden, against_nights))


def _over_shapes(
    change: float, of_runs: Sequence[tuple[float, Variance | None]], num_nights: float, found: Noises
) -> float:
    """Return the tail over all shapes of the nights; ``num_nights`` of their variance add to that of the runs."""
    return sum(weight * _tail(change, [*of_runs, (num_nights, nights)]) for weight, nights in found.nights)


def _tail(change: float, shares: Sequence[tuple[float, Variance | None]]) -> float:
    """Return Welch's tail for ``change``; ``shares`` of the same variance are added first: they are one estimate."""
    weights: dict[Variance, float] = {}
    for weight, variance in shares:
        if variance:
            weights[variance] = weights.get(variance, 0.0) + weight
    parts = ((weight * variance.value, variance.degrees) for variance, weight in weights.items())
    return of_variances(change, parts).upper_tail


def _basis(tonight: Variance | None, golden: Variance | None, history: KnownNoise | None) -> str:
    nights = history.night_df + 1 if history else 0
    sources = [
        "these runs" if tonight else "",
        "the golden's runs" if golden else "",
        f"{nights} night{'s' * (nights > 1)}" if history else "",
    ]
    return "noise from " + " and ".join(filter(None, sources))
