"""How sure a change of a figure is that differs from run to run: the noise of one run, and a p-value."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis import statistics
from harness.analysis.night_values import Evidence
from harness.analysis.noise import KnownNoise
from harness.analysis.student_t import f_upper_tail, t_upper_tail

# Of an F test that tells one source of noise from another; with less the sources are one.
_OTHER_NOISE = 0.05
# Variance of the median of n normal values over that of their mean; the limit holds for any n from above.
_MEDIAN_OVER_MEAN = {1: 1.0, 2: 1.0, 3: 1.346, 4: 1.193, 5: 1.434}
_MEDIAN_OVER_MEAN_LIMIT = math.pi / 2


@dataclass(frozen=True)
class Reference:
    """The golden's figure: the median of ``num_runs`` runs, whose relative standard deviation is ``spread``, if known."""

    value: float
    spread: float | None
    num_runs: int


@dataclass(frozen=True)
class _Variance:
    """A relative variance of single runs (or of nights) with its degrees of freedom."""

    value: float
    degrees: float


def evidence_of(values: Sequence[float], golden: Reference, noise: KnownNoise | None) -> Evidence:
    """How likely runs that say ``values`` (one figure each, one at least) lie this far from ``golden`` by noise alone.

    The p-value is one-sided, in the direction of the change of their mean against the golden; above 0.5 where nights
    since the golden speak for the other direction. With history it is twice the smaller of two: against the golden, and
    against the level of those nights, which is known better than a golden of a few runs. None where nothing is known of
    the noise.
    """
    tonight = _sample([value / golden.value for value in values])
    theirs = _own(golden.spread, golden.num_runs)
    history = _Variance(noise.within_sd**2, noise.within_df) if noise and noise.within_df else None
    pooled, ours, theirs_used = _of_each_side(tonight, theirs, history)
    nights = _between(noise, pooled) if noise else None
    if pooled is None and nights is None:
        return Evidence(None, None, "noise unknown: one run on each side, no history", len(values), golden.num_runs)
    mean = math.fsum(values) / len(values)
    direction = 1.0 if mean >= golden.value else -1.0
    against_golden = _p_value(
        direction * (mean / golden.value - 1),
        [(1 / len(values), ours), (_median_share(golden.num_runs), theirs_used), (2.0, nights)],
    )
    p_value = against_golden
    if noise and noise.num_nights:
        against_nights = _p_value(
            direction * (mean - noise.level) / golden.value,
            [(1 / len(values), ours), (1 / noise.num_runs, pooled), (1 + 1 / noise.num_nights, nights)],
        )
        p_value = min(1.0, 2 * min(against_golden, against_nights))
    one_run = math.sqrt(sum(part.value for part in (ours, nights) if part))
    return Evidence(p_value, one_run, _basis(tonight, theirs, noise), len(values), golden.num_runs)


def _sample(values: Sequence[float]) -> _Variance | None:
    spread = statistics.sample_stdev(values)
    return None if spread is None else _Variance(spread**2, len(values) - 1)


def _own(spread: float | None, num_runs: int) -> _Variance | None:
    return None if spread is None or num_runs < 2 else _Variance(spread**2, num_runs - 1)


def _of_each_side(
    tonight: _Variance | None, golden: _Variance | None, history: _Variance | None
) -> tuple[_Variance | None, _Variance | None, _Variance | None]:
    """The noise of one run from all sources together, of ours, and of the golden's.

    One noise for all is better known than several; a side that is noisier than the other sources (F test at 5 %) keeps
    its own, as in Welch's test, and is left out of the rest.
    """
    ours = tonight if _is_noisier(tonight, _pool(golden, history)) else None
    theirs = golden if _is_noisier(golden, _pool(tonight, history)) else None
    pooled = _pool(None if ours else tonight, None if theirs else golden, history)
    return pooled, ours or pooled, theirs or pooled


def _pool(*sources: _Variance | None) -> _Variance | None:
    known = [source for source in sources if source]
    degrees = sum(source.degrees for source in known)
    return _Variance(sum(s.value * s.degrees for s in known) / degrees, degrees) if known else None


def _is_noisier(one: _Variance | None, rest: _Variance | None) -> bool:
    if one is None or rest is None or one.value <= rest.value:
        return False
    return rest.value == 0 or f_upper_tail(one.value / rest.value, one.degrees, rest.degrees) <= _OTHER_NOISE


def _between(noise: KnownNoise, pooled: _Variance | None) -> _Variance | None:
    """What a night adds to all its runs, where its means differ by more than its runs explain (F test at 5 %).

    The difference of two variances has degrees of freedom by Satterthwaite (1946). Where every source is of single
    runs, the two cannot be told apart and all counts as the night's.
    """
    if noise.night_df == 0:
        return None
    nights = _Variance(noise.night_sd**2, noise.night_df)
    if pooled is None:
        return nights
    explained = _Variance(pooled.value / noise.runs_per_night, pooled.degrees)
    if not _is_noisier(nights, explained):
        return None
    left = nights.value - explained.value
    degrees = left**2 / (nights.value**2 / nights.degrees + explained.value**2 / explained.degrees)
    return _Variance(left, degrees)


def _median_share(num_runs: int) -> float:
    return _MEDIAN_OVER_MEAN.get(num_runs, _MEDIAN_OVER_MEAN_LIMIT) / num_runs


def _p_value(change: float, shares: Sequence[tuple[float, _Variance | None]]) -> float:
    """Student's t of ``change`` over its standard error, the sum of ``shares``; degrees by Satterthwaite.

    Shares of the same variance are added first: they are one estimate.
    """
    weights: dict[_Variance, float] = {}
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


def _basis(tonight: _Variance | None, golden: _Variance | None, noise: KnownNoise | None) -> str:
    told = [
        "these runs" if tonight else "",
        "the golden's runs" if golden else "",
        f"{noise.num_nights} night{'s' * (noise.num_nights > 1)}" if noise else "",
    ]
    return "noise from " + " and ".join(filter(None, told))
