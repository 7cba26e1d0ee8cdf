"""Spreads, Student's t, Welch's test, a cell's change of time against its control, and levels in a series of values."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev


def sample_stdev(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation; None for fewer than two values."""
    return stdev(values) if len(values) > 1 else None


def relative_spread(values: Sequence[float]) -> float | None:
    """Return sample standard deviation / mean; None for fewer than two values or a mean of zero."""
    spread = sample_stdev(values)
    return None if spread is None or not (middle := fmean(values)) else spread / abs(middle)


def t_quantile(probability: float, degrees: float) -> float:
    """Return the t below which ``probability`` of Student's distribution is: 2.228 at 0.975 with 10 degrees."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def t_upper_tail(t: float, degrees: float) -> float:
    """Return the share above ``t``: 7.94e-5 at 4 with 68 degrees; infinite degrees are the normal distribution."""
    from scipy.special import ndtr, stdtr

    return float(ndtr(-t) if math.isinf(degrees) else stdtr(degrees, -t))


MIN_RUNS = 3  # per side, for an interval: from two runs the 95 % quantile is 4 to 13 standard errors wide
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Welch:
    """A difference of means, with its standard error and degrees of freedom: Welch (1947), Satterthwaite (1946).

    Worked example: (1, 2, 3) and (2, 4, 6) differ by 2 with an error of 1.291 and 2.94 degrees of freedom; half of the
    95 % interval is 4.155.
    """

    difference: float
    error: float
    degrees: float

    @property
    def upper_tail(self) -> float:
        """The one-sided p-value of a difference above 0."""
        if self.error == 0:
            return 0.0 if self.difference > 0 else 1.0
        return t_upper_tail(self.difference / self.error, self.degrees)

    @property
    def p_value(self) -> float:
        """The two-sided p-value; without spread 0 for a difference, else 1."""
        if self.error == 0:
            return float(self.difference == 0)
        return 2 * t_upper_tail(abs(self.difference) / self.error, self.degrees)

    def half_width(self, confidence: float = CONFIDENCE) -> float:
        """Return half of the interval of the difference."""
        return self.error * t_quantile((1 + confidence) / 2, self.degrees) if self.error else 0.0


def welch(first: Sequence[float], second: Sequence[float]) -> Welch:
    """Test second - first; at least two values on each side, whose variances may differ."""
    sides = [((stdev(side)) ** 2 / len(side), len(side) - 1) for side in (first, second)]
    return of_variances(fmean(second) - fmean(first), sides)


def of_variances(difference: float, parts: Iterable[tuple[float, float]]) -> Welch:
    """Test a difference whose variance is the sum of ``parts``: variances, each with its degrees of freedom."""
    known = [(variance, degrees) for variance, degrees in parts if variance]
    total = math.fsum(variance for variance, _ in known)
    unknown = math.fsum(variance**2 / degrees for variance, degrees in known)
    return Welch(difference, math.sqrt(total), total**2 / unknown if unknown else math.inf)


def half_width(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Return half of Welch's 95 % interval; None below :data:`MIN_RUNS` values on a side."""
    return None if min(len(left), len(right)) < MIN_RUNS else welch(left, right).half_width()


@dataclass(frozen=True)
class TimeChange:
    """Cell minus control: s per step, and relative. ``interval``: 95 %; None below MIN_RUNS runs on a side."""

    seconds: float
    fraction: float
    interval: tuple[float, float] | None

    @property
    def is_settled(self) -> bool | None:
        """Whether the interval excludes 0; None without an interval."""
        return None if self.interval is None else not self.interval[0] <= 0 <= self.interval[1]


def time_change(cell: Sequence[float], control: Sequence[float]) -> TimeChange:
    """Return the change of the mean over repeats. Each value is a run's median step time in s; ValueError for none."""
    ours, theirs = fmean(cell), fmean(control)
    half = half_width(cell, control)
    change = (ours - theirs) / theirs
    interval = None if half is None else (change - half / theirs, change + half / theirs)
    return TimeChange(ours - theirs, change, interval)


MAD_TO_SD = 1.4826
"""Standard deviation of normal values over the median of their distances from their median."""

MIN_NIGHTS = 5
"""Fewer nights do not show how much nights differ."""

DEVIATIONS = 3.0
"""A change within so many spreads is noise: 1 of 740 normal values lies farther out on one side."""

# Probability of finding a step in a series without one; the search tries every place, which share it.
_STEP_ALPHA = 0.01
_FURTHER_STEP_ALPHA = 0.0001  # drifting values look like many steps, which would hide their noise
_ROUNDING = 1e-9  # of equal values
_MIN_FOR_STEP, _MIN_FOR_FURTHER_STEP = 4, 5


def changes_around(values: Sequence[float], parts: Sequence[range]) -> list[float]:
    """Return the relative change of each of ``values`` from the median of its level."""
    middles = [(median(values[part.start : part.stop]), part) for part in parts]
    return [values[i] / middle - 1 for middle, part in middles for i in part]


def spread_around(values: Sequence[float], parts: Sequence[range]) -> float:
    """Return the relative spread of ``values`` around the median of their level, robust against single odd ones."""
    return MAD_TO_SD * median(map(abs, changes_around(values, parts)))


def levels(values: Sequence[float]) -> list[range]:
    """Return the places of each level, in order: one step as :func:`step_before` has it, further ones if clear."""
    step = step_before(values)
    if not step:
        return [range(len(values))]
    return [*_split(values, 0, step), *_split(values, step, len(values))]


def _split(values: Sequence[float], start: int, end: int) -> list[range]:
    step = step_before(values[start:end], _FURTHER_STEP_ALPHA)
    if min(step, end - start - step) < _MIN_FOR_FURTHER_STEP:
        return [range(start, end)]
    return [*_split(values, start, start + step), *_split(values, start + step, end)]


def step_before(values: Sequence[float], alpha: float = _STEP_ALPHA) -> int:
    """Return the index of the first value after the one step in ``values``; 0 where there is none.

    The split that leaves the least variance, by Student's t of its two sides (a side may have one value, of which
    Welch's test knows no variance), at ``alpha`` over all splits (Bonferroni).
    """
    n = len(values)
    if n < _MIN_FOR_STEP:
        return 0
    middle = math.fsum(values) / n
    squares = math.fsum((x - middle) ** 2 for x in values)
    if math.sqrt(squares) <= _ROUNDING * abs(middle):
        return 0
    best, explained, left = 0, 0.0, 0.0
    for i in range(1, n):
        left += values[i - 1] - middle
        gain = left * left * n / (i * (n - i))
        if gain > explained:
            best, explained = i, gain
    rest = squares - explained
    if rest <= squares * 1e-12:
        return best if explained > 0 else 0
    t = math.sqrt(explained * (n - 2) / rest)
    return best if 2 * t_upper_tail(t, n - 2) * (n - 1) <= alpha else 0
