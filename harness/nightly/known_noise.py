"""Estimates the noise of a case from its earlier nights: levels, odd nights, drift and the tails of what nights add."""

import itertools
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from harness.judge.statistics import levels as places_of_levels

MIN_NIGHTS = 5
"""This many nights show how much nights differ."""

# An odd night is this many robust deviations from both sides, more in a short history, and at least so much of its
# level.
_ODD_DEVIATIONS, _ODD_SHORT, _ODD_LEAST = 4.0, 16.0, 0.01
_SIDE, _MIN_NIGHTS_FOR_ODD = 3, 4
_MAD_TO_SD = 1.4826

# What nights add: Student's t of these degrees, and how likely each is before any night was seen. Public histories of
# CI have tails of about 3 degrees; 20 nights rarely show which it is, nor the scale, for which half a degree makes up.
_TAILS = ((2.5, 0.7), (6.0, 0.15), (math.inf, 0.15))
# An odd night this far out is an accident, not the tail of the others.
_GROSS_DEVIATIONS = 10.0
_FIT_ROUNDS = 8
_MOST_DRIFT, _NORMAL_95_ONE_SIDED = 0.95, 1.645
_GROUP, _MIN_NIGHTS_FOR_PAIRS = 3, 10  # two nights are compared with so many before them
_AROUND = 5  # nights on each side of the golden that show whether its own was odd


@dataclass(frozen=True)
class OddNight:
    """A single night unlike those on both sides. ``index``: among the nights; ``change``: relative to its level."""

    index: int
    change: float


@dataclass(frozen=True)
class Tail:
    """One shape that the nights' deviations may have: Student's t with ``degrees``, of ``scale`` relative to the level.

    ``weight``: how likely this shape is given the nights; the weights of a history add up to 1.
    """

    degrees: float
    scale: float
    weight: float


@dataclass(frozen=True)
class KnownNoise:
    """The noise in nights of one case on one kind of machine. Standard deviations are relative to the level.

    ``within_sd``: of runs of one night, ``within_df`` its degrees of freedom (0: every night had one run).
    ``night_sd``: of the means of nights with ``runs_per_night`` runs each, ``night_df`` its degrees of freedom; ``odd``
    nights are left out. ``level``: mean of the ``num_runs`` runs in the newest ``num_nights`` nights, those since the
    golden and since any step, in the metric's unit; None where there are none. ``tails``: what shape the deviations of
    nights have. ``drift``: correlation of a night with the next, 0 where none is established. ``levels``: between
    steps, oldest first. ``golden_level``: median of the nights around the golden, None where there are too few.
    ``recent``: mean of the newest three nights, ``pair_sd``: relative deviation of two nights from the three before,
    None where there are too few.
    """

    within_sd: float
    within_df: int
    night_sd: float
    night_df: int
    runs_per_night: float
    level: float | None
    num_nights: int
    num_runs: int
    tails: tuple[Tail, ...] = ()
    odd: tuple[OddNight, ...] = ()
    drift: float = 0.0
    levels: tuple[float, ...] = ()
    golden_level: float | None = None
    recent: float | None = None
    pair_sd: float | None = None

    @property
    def knows_nights(self) -> bool:
        return self.night_df >= MIN_NIGHTS - 1

    @property
    def effective_nights(self) -> float:
        """Return how many independent nights know the level as well as its ``num_nights``."""
        return max(1.0, self.num_nights * (1 - self.drift) / (1 + self.drift))

    @property
    def effective_df(self) -> float:
        """Return how many degrees of freedom ``night_sd`` has where nights drift."""
        return max(1.0, self.night_df * (1 - self.drift**2) / (1 + self.drift**2)) if self.night_df else 0.0


def known_noise(nights: Sequence[Sequence[float]], num_before_golden: int = 0) -> KnownNoise | None:
    """Return the noise in ``nights``, oldest first, each with the figures of its runs; None for fewer than two runs.

    The first ``num_before_golden`` nights count for the noise, not for the level. Odd nights count for neither. Steps
    between nights are taken out: deviations are from the mean of the level. Worked example: the nights (99, 101),
    (100, 102) have deviations of 1 from their means 100 and 101, which makes a within_sd of about 1.41 % with 2 degrees
    of freedom, and a night_sd of about 0.70 % with 1.
    """
    if sum(map(len, nights)) < 2:
        return None
    means = [math.fsum(night) / len(night) for night in nights]
    runs_per_night = len(nights) / math.fsum(1 / len(night) for night in nights)
    odd = _odd_nights(nights, means, runs_per_night)
    out = {night.index for night in odd}
    usual = [i for i in range(len(nights)) if i not in out]
    usual_means = [means[i] for i in usual]
    sides = [[usual[i] for i in side] for side in places_of_levels(usual_means)]
    levels = [fmean([means[i] for i in side]) for side in sides]
    deviations = [[(means[i] - level) / level for i in side] for side, level in zip(sides, levels, strict=True)]
    drift, night_df = _drift(deviations), len(usual) - len(sides)
    night_sd = _night_sd(deviations, drift, night_df)
    within_sd, within_df = _within(nights, means, sides, levels)
    since = bisect_left(sides[-1], num_before_golden)
    runs = list(itertools.chain.from_iterable(nights[i] for i in sides[-1][since:]))
    return KnownNoise(
        within_sd=within_sd,
        within_df=within_df,
        night_sd=night_sd,
        night_df=night_df,
        runs_per_night=runs_per_night,
        level=_mean(runs),
        num_nights=len(sides[-1]) - since,
        num_runs=len(runs),
        tails=_tails(list(itertools.chain.from_iterable(deviations)), odd, night_df, night_sd),
        odd=odd,
        drift=drift,
        levels=tuple(levels),
        golden_level=_golden_level(means, usual, num_before_golden),
        recent=_mean(usual_means[-_GROUP:], least=_GROUP),
        pair_sd=_pair_sd(usual_means),
    )


def _mean(values: Sequence[float], least: int = 1) -> float | None:
    return math.fsum(values) / len(values) if len(values) >= least else None


def _within(
    nights: Sequence[Sequence[float]], means: Sequence[float], sides: Sequence[Sequence[int]], levels: Sequence[float]
) -> tuple[float, int]:
    """Return the relative standard deviation of runs of one night, and its degrees of freedom."""
    parts = [(i, level) for side, level in zip(sides, levels, strict=True) for i in side]
    squares = math.fsum(((x - means[i]) / level) ** 2 for i, level in parts for x in nights[i])
    degrees = sum(len(nights[i]) - 1 for i, _ in parts)
    return (math.sqrt(squares / degrees) if degrees else 0.0), degrees


def _night_sd(deviations: Sequence[Sequence[float]], drift: float, degrees: int) -> float:
    between = math.fsum(d * d for side in deviations for d in side)
    num = sum(map(len, deviations))
    if drift:  # a level that follows the drift takes part of it away
        between /= 1 - (1 + drift) / (1 - drift) / num if num * (1 - drift) > 2 * (1 + drift) else 0.5
    return math.sqrt(between / degrees) if degrees else 0.0


def _golden_level(means: Sequence[float], usual: Sequence[int], num_before_golden: int) -> float | None:
    around = [means[i] for i in usual if num_before_golden - _AROUND <= i < num_before_golden + _AROUND]
    return median(around) if len(around) >= MIN_NIGHTS else None


def _pair_sd(means: Sequence[float]) -> float | None:
    """Return the robust relative deviation of two nights from the three before them; None for fewer than ten nights.

    Unlike the deviation of a night, it needs no estimate of how nights depend on the nights before.
    """
    if len(means) < _MIN_NIGHTS_FOR_PAIRS:
        return None
    pairs = range(_GROUP, len(means) - 1)
    changes = [math.fsum(means[i : i + 2]) / math.fsum(means[i - _GROUP : i]) * _GROUP / 2 - 1 for i in pairs]
    return _MAD_TO_SD * median([abs(change) for change in changes])


def _odd_nights(
    nights: Sequence[Sequence[float]], means: Sequence[float], runs_per_night: float
) -> tuple[OddNight, ...]:
    """Return nights unlike the medians of the nights on both sides, and unlike both neighbours.

    The measure is the median of the differences from night to night, which neither a step nor an odd night changes.
    """
    if len(means) < _MIN_NIGHTS_FOR_ODD:
        return ()
    middle = median(means)
    steps = [abs(b - a) / middle for a, b in itertools.pairwise(means)]
    spreads = [_spread(night, mean) for night, mean in zip(nights, means, strict=True) if len(night) > 1]
    of_runs = median(spreads) / math.sqrt(runs_per_night) if spreads else 0.0
    scale = max(_MAD_TO_SD * median(steps) / math.sqrt(2), of_runs)
    limit = max(_ODD_LEAST, scale * (_ODD_DEVIATIONS + _ODD_SHORT / len(means)))
    found = ((i, _changes(means, i, limit)) for i in range(len(means)))
    return tuple(OddNight(i, fmean(changes)) for i, changes in found if changes)


def _changes(means: Sequence[float], i: int, limit: float) -> list[float]:
    """Return the changes of a night from the nights on both sides; empty unless all are beyond the limit, one way."""
    sides = [side for side in (means[max(0, i - _SIDE) : i], means[i + 1 : i + 1 + _SIDE]) if side]
    changes = [means[i] / median(side) - 1 for side in sides]
    neighbours = [means[i] / means[k] - 1 for k in (i - 1, i + 1) if 0 <= k < len(means)]
    is_odd = all(abs(change) > limit for change in (*changes, *neighbours)) and len({x > 0 for x in changes}) == 1
    return changes if is_odd else []


def _spread(night: Sequence[float], mean: float) -> float:
    """Return the sample standard deviation divided by the mean; 0 if the mean is 0.

    Uses floats, because the exact fractions of the statistics module are slow.
    """
    return math.sqrt(math.fsum((x - mean) ** 2 for x in night) / (len(night) - 1)) / abs(mean) if mean else 0.0


def _drift(deviations: Sequence[Sequence[float]]) -> float:
    """Return the correlation of a night with the next, without the bias of few nights; 0 unless established (5 %)."""
    squares = math.fsum(d * d for side in deviations for d in side)
    n = sum(map(len, deviations))
    if squares == 0 or n <= MIN_NIGHTS:
        return 0.0
    products = math.fsum(a * b for side in deviations for a, b in itertools.pairwise(side))
    found = products / squares
    return min(_MOST_DRIFT, (found * n + 1) / (n - 3)) if found > _NORMAL_95_ONE_SIDED / math.sqrt(n) else 0.0


def _tails(deviations: Sequence[float], odd: Sequence[OddNight], degrees: int, night_sd: float) -> tuple[Tail, ...]:
    """Return the shapes of :data:`_TAILS` by how well they fit, each with its scale. Gross odd nights do not count."""
    if night_sd == 0 or degrees < MIN_NIGHTS - 1:
        return ()
    values = [*deviations, *(night.change for night in odd if abs(night.change) < _GROSS_DEVIATIONS * night_sd)]
    share = (degrees + len(values) - len(deviations)) / len(values)
    fits = [_fit(values, shape, share) for shape, _ in _TAILS]
    best = max(likelihood for _, likelihood in fits)
    weights = [prior * math.exp(likelihood - best) for (_, prior), (_, likelihood) in zip(_TAILS, fits, strict=True)]
    return tuple(
        Tail(shape, scale, weight / sum(weights))
        for (shape, _), (scale, _), weight in zip(_TAILS, fits, weights, strict=True)
    )


def _fit(values: Sequence[float], shape: float, share: float) -> tuple[float, float]:
    """Return scale and log likelihood of Student's t with ``shape`` degrees; ``share``: degrees per value."""
    squares = [x * x for x in values]
    variance = math.fsum(squares) / len(squares)
    if math.isinf(shape):
        likelihood = -len(values) / 2 * (math.log(2 * math.pi * variance) + 1)
        return math.sqrt(variance / share), likelihood
    for _ in range(_FIT_ROUNDS):  # expectation maximisation
        variance = math.fsum(x * (shape + 1) / (shape + x / variance) for x in squares) / len(squares)
    constant = math.lgamma((shape + 1) / 2) - math.lgamma(shape / 2) - math.log(shape * math.pi * variance) / 2
    likelihood = math.fsum(constant - (shape + 1) / 2 * math.log1p(x / (shape * variance)) for x in squares)
    return math.sqrt(variance / share), likelihood
