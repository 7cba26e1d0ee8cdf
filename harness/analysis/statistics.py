"""Robust figures of small samples: steps of a run, or medians of repeated runs."""

import statistics
from collections.abc import Sequence


def median(values: Sequence[float]) -> float:
    """Middle value: one hiccup among the steps leaves it alone. ValueError for no values."""
    return statistics.median(values)


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean. ValueError for no values."""
    return statistics.fmean(values)


def sample_stdev(values: Sequence[float]) -> float | None:
    """Sample standard deviation; None from fewer than two values, which have no spread."""
    return statistics.stdev(values) if len(values) > 1 else None


def relative_spread(values: Sequence[float]) -> float | None:
    """Sample standard deviation over mean; None from fewer than two values or a mean of zero."""
    spread, middle = sample_stdev(values), mean(values)
    return None if spread is None or middle == 0 else spread / abs(middle)
