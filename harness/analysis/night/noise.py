"""How much the runs of a case differ from each other when nothing changed, as earlier nights show it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis import statistics
from harness.analysis.student_t import t_upper_tail

# Of a step anywhere in a history that has none; the search tries every night, so that each may only take its share.
_STEP_ALPHA = 0.01
_MIN_NIGHTS_FOR_STEP = 4
MIN_NIGHTS = 5
"""Nights from which on it is known how nights differ."""


@dataclass(frozen=True)
class KnownNoise:
    """What nights of one case on one kind of machine say of it. Standard deviations are relative to the level.

    ``within_sd``: of runs of one night, ``within_df`` its degrees of freedom (0: every night had one run). ``night_sd``:
    of the means of nights with ``runs_per_night`` runs each, ``night_df`` its degrees of freedom. ``level``: mean of the
    ``num_runs`` runs in the newest ``num_nights`` nights, those since the golden and since any step, in the metric's
    unit; None where there are none.
    """

    within_sd: float
    within_df: int
    night_sd: float
    night_df: int
    runs_per_night: float
    level: float | None
    num_nights: int
    num_runs: int

    @property
    def tells_nights(self) -> bool:
        """Whether it is known how nights differ: a change of less than the threshold may be the night's."""
        return self.night_df >= MIN_NIGHTS - 1


def known_noise(nights: Sequence[Sequence[float]], num_before_golden: int = 0) -> KnownNoise | None:
    """The noise in ``nights``, oldest first, each with the figures of its runs; None for fewer than two runs.

    The first ``num_before_golden`` nights tell of noise, not of the level. At most one step between nights is taken out:
    deviations are from the mean on either side of it. Worked example: the nights (99, 101), (100, 102) have deviations
    of 1 from their means 100 and 101, which makes a within_sd of about 1.41 % with 2 degrees of freedom, and a night_sd
    of about 0.70 % with 1.
    """
    if sum(map(len, nights)) < 2:
        return None
    means = [math.fsum(night) / len(night) for night in nights]
    step = step_before(means)
    sides = [side for side in (range(step), range(step, len(nights))) if side]
    levels = [statistics.mean([means[i] for i in side]) for side in sides]
    parts = [(i, level) for side, level in zip(sides, levels, strict=True) for i in side]
    within = math.fsum(((x - means[i]) / level) ** 2 for i, level in parts for x in nights[i])
    between = math.fsum(((means[i] - level) / level) ** 2 for i, level in parts)
    within_df, night_df = sum(len(night) - 1 for night in nights), len(nights) - len(sides)
    newest = nights[max(step, num_before_golden) :]
    runs = [x for night in newest for x in night]
    return KnownNoise(
        within_sd=math.sqrt(within / within_df) if within_df else 0.0,
        within_df=within_df,
        night_sd=math.sqrt(between / night_df) if night_df else 0.0,
        night_df=night_df,
        runs_per_night=len(nights) / math.fsum(1 / len(night) for night in nights),
        level=math.fsum(runs) / len(runs) if runs else None,
        num_nights=len(newest),
        num_runs=len(runs),
    )


def step_before(means: Sequence[float]) -> int:
    """The index of the first night after the one step in ``means``; 0 where there is none.

    The split that leaves the least variance, by Student's t of its two sides, at 1 % over all splits (Bonferroni).
    """
    n = len(means)
    if n < _MIN_NIGHTS_FOR_STEP:
        return 0
    middle = math.fsum(means) / n
    squares = math.fsum((x - middle) ** 2 for x in means)
    best, explained, left = 0, 0.0, 0.0
    for i in range(1, n):
        left += means[i - 1] - middle
        gain = left * left * n / (i * (n - i))
        if gain > explained:
            best, explained = i, gain
    rest = squares - explained
    if rest <= squares * 1e-12:
        return best if explained > 0 else 0
    t = math.sqrt(explained * (n - 2) / rest)
    return best if 2 * t_upper_tail(t, n - 2) * (n - 1) <= _STEP_ALPHA else 0
