"""Where the level of a series changed: segments by ruptures, each edge checked by Welch's test.

PELT with squared error, penalty 3 ln n sigma^2, where sigma is the standard deviation of first differences over the root of
two: steps of the level hardly widen it. Killick, Fearnhead and Eckley, "Optimal detection of changepoints with a linear
computational cost" (2012). An edge needs :data:`MIN_NIGHTS` on either side, so that the newest nights are never one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

from harness.analysis import statistics

MIN_NIGHTS = 3
MAX_NIGHTS = 400  # the search takes half a second for that many, and four times as long for twice as many
MAX_P_VALUE = 0.01
METHOD = "pelt-l2-1"  # counted up when the same values may give other points

_PENALTY = 3.0


@dataclass(frozen=True)
class ChangePoint:
    """The value at ``index`` is the first of a new level. ``before`` and ``after``: means of the levels it parts."""

    index: int
    before: float
    after: float
    p_value: float

    @property
    def fraction(self) -> float:
        """Change of the level, as a fraction of what it was."""
        return (self.after - self.before) / self.before


def obstacle() -> str:
    """Why no change points can be looked for, in one sentence; empty where they can. Imports nothing."""
    missing = [name for name in ("ruptures", "scipy") if find_spec(name) is None]
    if not missing:
        return ""
    return f"No change points: {' and '.join(missing)} not installed (pip install 'mbr-perf[stats]')."


def change_points(values: Sequence[float]) -> tuple[ChangePoint, ...]:
    """Edges between levels in the newest :data:`MAX_NIGHTS` of ``values``, in order; positive numbers.

    Edges whose two sides do not differ by Welch's test at :data:`MAX_P_VALUE` are dropped, the weakest first. Needs
    ruptures and scipy, see :func:`obstacle`.
    """
    if len(values) < 2 * MIN_NIGHTS:
        return ()
    passed_over = max(0, len(values) - MAX_NIGHTS)
    points = _confirmed(values[passed_over:])
    return tuple(replace(point, index=point.index + passed_over) for point in points)


def _confirmed(values: Sequence[float]) -> list[ChangePoint]:
    edges = _edges(values)
    while True:
        found = [_point(values, edges, number) for number in range(len(edges))]
        weakest = max(found, key=lambda point: point.p_value, default=None)
        if weakest is None or weakest.p_value <= MAX_P_VALUE:
            return found
        edges.remove(weakest.index)


def _edges(values: Sequence[float]) -> list[int]:
    import numpy as np
    from ruptures import Pelt

    signal = np.asarray(values, dtype=float) / statistics.median(values)
    sigma = float(np.std(np.diff(signal))) / math.sqrt(2)
    if sigma == 0:
        return []
    search = Pelt(model="l2", min_size=MIN_NIGHTS, jump=1).fit(signal.reshape(-1, 1))
    return list(search.predict(pen=_PENALTY * math.log(len(values)) * sigma**2))[:-1]


def _point(values: Sequence[float], edges: Sequence[int], number: int) -> ChangePoint:
    start = edges[number - 1] if number else 0
    end = edges[number + 1] if number + 1 < len(edges) else len(values)
    before, after = values[start : edges[number]], values[edges[number] : end]
    p_value = _p_value(before, after)
    return ChangePoint(edges[number], statistics.mean(before), statistics.mean(after), p_value)


def _p_value(before: Sequence[float], after: Sequence[float]) -> float:
    """Two-sided, of Welch's test; of two sides without spread 0 where they differ."""
    from scipy.stats import ttest_ind_from_stats

    sides = [(statistics.mean(side), statistics.sample_stdev(side) or 0.0, len(side)) for side in (before, after)]
    if all(spread == 0 for _, spread, _ in sides):
        return 0.0 if sides[0][0] != sides[1][0] else 1.0
    return float(ttest_ind_from_stats(*sides[0], *sides[1], equal_var=False).pvalue)
