"""Pools what tonight, the golden and earlier nights show of the noise, and tests a change against it."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.judge.statistics import f_upper_tail, of_variances, sample_stdev
from harness.nightly.known_noise import KnownNoise
from harness.nightly.values import Evidence


@dataclass(frozen=True)
class Variance:
    """A relative variance with its degrees of freedom."""

    value: float
    degrees: float


# Of the F tests that separate noises. A side on its own has few degrees of freedom and can show little, so chance must
# seldom cause it; nights that add noise of their own must not be overlooked.
_SIDE_ALPHA, _NIGHTS_ALPHA = 0.05, 0.25
_LEAST_DEGREES = 10  # fewer cannot show that runs explain how nights differ
UNKNOWN_NIGHTS = Variance(0.01**2, math.inf)
"""Nights of one machine commonly differ by 1 %: a change must exceed that, too, where too few nights are known."""
_NOTHING = Variance(0.0, math.inf)
# How likely a night is noisier than all before, and by how much, before any of its runs was seen. Chosen by
# scripts/bench-gate: more costs detection of 3 % at 1 % noise, less calls more than 1 of 100 such nights red.
_NOISIER_PRIOR, _NOISIER_TIMES = 0.25, 2.0


@dataclass(frozen=True)
class Noises:
    """Variances of a run tonight, of the golden's runs, of earlier nights' runs, and of what a night adds to its runs.

    ``nights``: each shape that this may have, with its weight; the weights add up to 1. A single one of no variance:
    nights add nothing. ``are_nights_known``: enough nights were seen. None where nothing is known.
    """

    ours: Variance | None
    golden: Variance | None
    history: Variance | None
    nights: tuple[tuple[float, Variance], ...]
    are_nights_known: bool
    noisier: tuple[float, Variance] | None = None

    @property
    def night_variance(self) -> float:
        """Return the variance that a night adds, over all shapes."""
        return sum(weight * variance.value for weight, variance in self.nights)


def noises(tonight: Variance | None, golden: Variance | None, history: KnownNoise | None) -> Noises:
    """Pool the sources, because one common noise is known better than several.

    A side that is noisier than the rest (F test at 5 %) keeps its own, as in Welch's test. Nights whose means differ by
    more than their runs explain (F test at 25 %) add a variance of their own; otherwise their means also count as runs.
    Runs with fewer than 10 degrees of freedom explain nothing: all variance of the nights then counts as the nights'
    own.
    """
    within = Variance(history.within_sd**2, history.within_df) if history and history.within_df else None
    ours = tonight if _is_noisier(tonight, _pool(golden, within), _SIDE_ALPHA) else None
    theirs = golden if _is_noisier(golden, _pool(tonight, within), _SIDE_ALPHA) else None
    runs = _pool(None if ours else tonight, None if theirs else golden, within)
    nights, runs = _nights(history, runs)
    noisier = None
    if tonight and runs and not ours and runs.value > 0:
        noisier = _noisier(tonight, runs)
        ours = _stretched(tonight, runs) if tonight.value > runs.value else None
    known = history is not None and history.knows_nights
    return Noises(ours or runs, theirs or runs, runs, nights, known, noisier)


def _nights(
    history: KnownNoise | None, runs: Variance | None
) -> tuple[tuple[tuple[float, Variance], ...], Variance | None]:
    """Return what nights add, by shape; and the variance of runs, with the nights' means if they add nothing."""
    left = _between(history, runs) if history else None
    if history and left:
        return _shapes(history, left), runs
    if history and history.night_df and runs:
        runs = _pool(runs, Variance(history.night_sd**2 * history.runs_per_night, history.night_df))
    return ((1.0, _NOTHING),), runs


def _noisier(tonight: Variance, pooled: Variance) -> tuple[float, Variance]:
    """Return how likely tonight is twice as noisy as the pooled runs, by how its own runs vary, and that variance."""
    times = _NOISIER_TIMES**2
    exponent = tonight.degrees / 2 * (tonight.value / pooled.value * (1 - 1 / times) - math.log(times))
    odds = _NOISIER_PRIOR / (1 - _NOISIER_PRIOR) * math.exp(min(exponent, 100.0))
    return odds / (1 + odds), Variance(pooled.value * times, pooled.degrees)


def _stretched(tonight: Variance, pooled: Variance) -> Variance:
    """Return tonight's own variance, which may exceed the pooled one by chance, and its degrees of freedom.

    The more it exceeds the pooled variance, the fewer degrees of the pooled runs it gets.
    """
    stretch = tonight.value / pooled.value
    return Variance(tonight.value, tonight.degrees + (pooled.degrees - tonight.degrees) / stretch**4)


def _pool(*sources: Variance | None) -> Variance | None:
    known = [source for source in sources if source]
    degrees = sum(source.degrees for source in known)
    return Variance(sum(s.value * s.degrees for s in known) / degrees, degrees) if known else None


def _is_noisier(side: Variance | None, rest: Variance | None, alpha: float) -> bool:
    if side is None or rest is None or side.value <= rest.value:
        return False
    return rest.value == 0 or f_upper_tail(side.value / rest.value, side.degrees, rest.degrees) <= alpha


def _between(history: KnownNoise, runs: Variance | None) -> Variance | None:
    """Return the variance that nights add: a difference of variances, degrees of freedom by Satterthwaite (1946)."""
    if history.night_df == 0:
        return None
    nights = Variance(history.night_sd**2, history.effective_df)
    if runs is None or runs.degrees < _LEAST_DEGREES:
        return nights
    explained = Variance(runs.value / history.runs_per_night, runs.degrees)
    if not _is_noisier(nights, explained, _NIGHTS_ALPHA):
        return None
    left = nights.value - explained.value
    degrees = left**2 / (nights.value**2 / nights.degrees + explained.value**2 / explained.degrees)
    return Variance(left, degrees)


def _shapes(history: KnownNoise, left: Variance) -> tuple[tuple[float, Variance], ...]:
    """Return ``left`` by each shape that the nights may have: the share of its scale that runs do not explain."""
    if not history.tails or history.night_sd == 0:
        return ((1.0, left),)
    share = left.value / history.night_sd**2
    return tuple(
        (tail.weight, Variance(tail.scale**2 * share, min(tail.degrees, left.degrees))) for tail in history.tails
    )


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
