"""Means, medians, Welch's interval and Student's t distribution, without scipy."""

import math
import statistics as stdlib_statistics
from collections.abc import Sequence
from dataclasses import dataclass

from harness.units import counted


def median(values: Sequence[float]) -> float:
    """Return the median, which a single slow step does not change. ValueError without values."""
    return stdlib_statistics.median(values)


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean. ValueError without values."""
    return stdlib_statistics.fmean(values)


def sample_stdev(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation; None for fewer than two values."""
    return stdlib_statistics.stdev(values) if len(values) > 1 else None


def relative_spread(values: Sequence[float]) -> float | None:
    """Return sample standard deviation / mean; None for fewer than two values or a mean of zero."""
    spread, middle = sample_stdev(values), mean(values)
    return None if spread is None or middle == 0 else spread / abs(middle)


_TINY = 1e-300
_CONVERGED = 1e-15
_MAX_TERMS = 500


def t_quantile(probability: float, degrees: float) -> float:
    """Return the t below which ``probability`` (0.5 to below 1) of the distribution is. ValueError out of range.

    Uses bisection of the exact distribution function. Agrees with published tables to all their digits.
    """
    if not (0.5 <= probability < 1) or not degrees > 0:
        raise ValueError(f"no quantile {probability} with {degrees} degrees of freedom")
    low, high = 0.0, 1.0
    while t_cumulative(high, degrees) < probability:
        low, high = high, high * 2
    while high - low > _CONVERGED * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_cumulative(middle, degrees) < probability else (low, middle)
    return (low + high) / 2


def t_cumulative(t: float, degrees: float) -> float:
    """Return the share of the distribution below ``t`` >= 0."""
    return 1 - t_upper_tail(t, degrees)


def t_upper_tail(t: float, degrees: float) -> float:
    """Return the share above ``t`` >= 0, precise also for tiny values: 7.94e-5 at t = 4 with 68 degrees of freedom.

    Infinite degrees are the normal distribution.
    """
    if math.isinf(degrees):
        return math.erfc(t / math.sqrt(2)) / 2
    return _incomplete_beta(degrees / (degrees + t * t), degrees / 2, 0.5) / 2


def f_upper_tail(ratio: float, degrees: float, degrees_below: float) -> float:
    """Return the share of the F distribution above ``ratio`` >= 0: 0.05 at 6.39 with 4 and 4 degrees of freedom."""
    return _incomplete_beta(degrees_below / (degrees_below + degrees * ratio), degrees_below / 2, degrees / 2)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Compute the regularized incomplete beta function by its continued fraction (Abramowitz and Stegun 26.5.8)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    ways = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(ways + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1 - front * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """Evaluate the continued fraction from the front by Lentz's method."""
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d, c = 1 / _nonzero(1 + term * d), _nonzero(1 + term / c)
            value *= d * c
        if abs(d * c - 1) < _CONVERGED:
            break
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


MIN_RUNS = 3  # per side, for an interval: from two runs the 95 % quantile is 4 to 13 standard errors wide
CONFIDENCE = 0.95


@dataclass(frozen=True)
class TimeChange:
    """Cell minus control: seconds per step, and as a fraction of the control. ``interval``: 95 %, as fractions.

    ``interval`` is None below :data:`MIN_RUNS` repeats per side. ``basis``: a text on the data behind the figure.
    """

    seconds: float
    fraction: float
    interval: tuple[float, float] | None
    basis: str

    @property
    def is_settled(self) -> bool | None:
        """Return whether the interval excludes 0; None without an interval."""
        return None if self.interval is None else not self.interval[0] <= 0 <= self.interval[1]


def time_change(
    cell: Sequence[float],
    control: Sequence[float],
    steps: tuple[float | None, float | None],
    against: str = "control",
) -> TimeChange:
    """Return the change of the mean over repeats. Each value is a run's median step time in seconds.

    ``against``: the name of the control. ``steps``: relative spread of the steps of cell and control, shown if each has
    a single run. ValueError if a side is empty.
    """
    ours, theirs = mean(cell), mean(control)
    half = half_width(cell, control)
    change = (ours - theirs) / theirs
    interval = None if half is None else (change - half / theirs, change + half / theirs)
    return TimeChange(ours - theirs, change, interval, _basis(cell, control, steps, against))


def half_width(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Return half of Welch's 95 % interval of the difference of two means; None below :data:`MIN_RUNS` values on a side.

    Welch (1947): variances may differ; degrees of freedom by Satterthwaite. Worked example:
    (1, 2, 3) and (2, 4, 6) have standard error 1.291 and 2.94 degrees of freedom, so the half width is 4.155.
    """
    if min(len(left), len(right)) < MIN_RUNS:
        return None
    parts = [((sample_stdev(side) or 0.0) ** 2 / len(side), len(side)) for side in (left, right)]
    error = sum(part for part, _ in parts)
    if error == 0:
        return 0.0
    degrees = error**2 / sum(part**2 / (n - 1) for part, n in parts)
    return t_quantile((1 + CONFIDENCE) / 2, degrees) * math.sqrt(error)


def _basis(
    cell: Sequence[float], control: Sequence[float], steps: tuple[float | None, float | None], against: str
) -> str:
    if min(len(cell), len(control)) >= MIN_RUNS:
        return f"95 % interval by Welch's t, {len(cell)} and {len(control)} runs"
    runs = f"{counted(len(cell), 'run')} each" if len(cell) == len(control) else f"{len(cell)} and {len(control)} runs"
    sizes = f"{runs}; an interval needs at least {MIN_RUNS}{' each' * (len(cell) != len(control))}"
    spreads = [text for text in (_spread("this cell", cell, steps[0]), _spread(against, control, steps[1])) if text]
    return f"{sizes}; {', '.join(spreads)}" if spreads else sizes


def _spread(who: str, runs: Sequence[float], steps: float | None) -> str:
    if len(runs) > 1:
        return f"runs of {who} differ by {(max(runs) - min(runs)) / mean(runs) * 100:.1f} %"
    return (
        ""
        if steps is None
        else f"steps of {'the ' * (who in ('control', 'reference'))}{who} spread by {steps * 100:.1f} % (standard deviation)"
    )
