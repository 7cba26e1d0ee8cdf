"""Estimates how much runs of a case vary, from tonight, the golden and history."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.judging import statistics
from harness.judging.statistics import f_upper_tail, t_upper_tail

# Probability of finding a step in a history without one; the search tries every night, which share it.
_STEP_ALPHA = 0.01
_MIN_NIGHTS_FOR_STEP = 4
MIN_NIGHTS = 5
"""This many nights show how much nights differ."""


@dataclass(frozen=True)
class KnownNoise:
    """The noise in nights of one case on one kind of machine. Standard deviations are relative to the level.

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
    def knows_nights(self) -> bool:
        """Return whether there are enough nights to know how nights differ."""
        return self.night_df >= MIN_NIGHTS - 1


def known_noise(nights: Sequence[Sequence[float]], num_before_golden: int = 0) -> KnownNoise | None:
    """Return the noise in ``nights``, oldest first, each with the figures of its runs; None for fewer than two runs.

    The first ``num_before_golden`` nights count for the noise, not for the level. At most one step between nights is taken out:
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
    """Return the index of the first night after the one step in ``means``; 0 where there is none.

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


# Of the F tests that separate noises. A side on its own has few degrees of freedom and can show little, so chance must
# seldom cause it; nights that add noise of their own must not be overlooked.
_SIDE_ALPHA, _NIGHTS_ALPHA = 0.01, 0.05


@dataclass(frozen=True)
class Variance:
    """A relative variance with its degrees of freedom."""

    value: float
    degrees: float


@dataclass(frozen=True)
class Noises:
    """Variances of one run tonight, of the golden's runs, of earlier nights' runs, and of nights as a whole.

    ``stretch``: by how much ours varied more than ``ours`` says, where that is no more than chance may do; at least 1.
    None where nothing is known, or for ``nights`` where they add nothing.
    """

    ours: Variance | None
    golden: Variance | None
    history: Variance | None
    nights: Variance | None
    stretch: float = 1.0


def noises(tonight: Variance | None, golden: Variance | None, history: KnownNoise | None) -> Noises:
    """Pool the sources, because one common noise is known better than several.

    A side that is noisier than the rest (F test at 1 %) keeps its own, as in Welch's test. Nights whose means differ by
    more than their runs explain (F test at 5 %) add a variance of their own; otherwise their means also
    count as runs. If every source has single runs only, the two cannot be separated, and all variance counts as the night's.
    """
    within = Variance(history.within_sd**2, history.within_df) if history and history.within_df else None
    ours = tonight if _is_noisier(tonight, _pool(golden, within), _SIDE_ALPHA) else None
    theirs = golden if _is_noisier(golden, _pool(tonight, within), _SIDE_ALPHA) else None
    runs = _pool(None if ours else tonight, None if theirs else golden, within)
    nights = _between(history, runs) if history else None
    if history and history.night_df and runs and not nights:
        runs = _pool(runs, Variance(history.night_sd**2 * history.runs_per_night, history.night_df))
    stretched = tonight is not None and ours is None and runs is not None and tonight.value > runs.value > 0
    stretch = tonight.value / runs.value if stretched and tonight and runs else 1.0
    return Noises(ours or runs, theirs or runs, runs, nights, stretch)


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
    nights = Variance(history.night_sd**2, history.night_df)
    if runs is None:
        return nights
    explained = Variance(runs.value / history.runs_per_night, runs.degrees)
    if not _is_noisier(nights, explained, _NIGHTS_ALPHA):
        return None
    left = nights.value - explained.value
    degrees = left**2 / (nights.value**2 / nights.degrees + explained.value**2 / explained.degrees)
    return Variance(left, degrees)
