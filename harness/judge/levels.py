"""Levels in a series of nights: where it steps, and how much the nights of a level differ."""

import math
from collections.abc import Sequence
from statistics import median

from harness.judge.statistics import t_upper_tail

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
