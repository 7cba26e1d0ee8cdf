"""The noise of one run put together from where it is known: tonight's repeats, the golden's runs, earlier nights."""

from dataclasses import dataclass

from harness.analysis.night.noise import KnownNoise
from harness.analysis.student_t import f_upper_tail

# Of the F tests that tell noises apart. A side that is set apart has few degrees of freedom and can show little, so that
# chance must seldom do it; nights that add noise of their own must not be overlooked.
_SIDE_ALPHA, _NIGHTS_ALPHA = 0.01, 0.05


@dataclass(frozen=True)
class Variance:
    """A relative variance with its degrees of freedom."""

    value: float
    degrees: float


@dataclass(frozen=True)
class Noises:
    """Variances of one run of ours, of the golden's, of earlier nights, and of what a night adds to all its runs.

    ``stretch``: by how much ours varied more than ``ours`` says, where that is no more than chance may do; at least 1.
    None where nothing is known, or for ``nights`` where they add nothing.
    """

    ours: Variance | None
    golden: Variance | None
    history: Variance | None
    nights: Variance | None
    stretch: float = 1.0


def noises(tonight: Variance | None, golden: Variance | None, history: KnownNoise | None) -> Noises:
    """One noise for all is better known than several, so that sources are pooled.

    A side that is noisier than the rest (F test at 1 %) keeps its own, as in Welch's test. Nights whose means differ by
    more than their runs explain (F test at 5 %) add a variance of their own; otherwise their means tell of runs too.
    Where every source is of single runs, the two cannot be told apart and all counts as the night's.
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


def _is_noisier(one: Variance | None, rest: Variance | None, alpha: float) -> bool:
    if one is None or rest is None or one.value <= rest.value:
        return False
    return rest.value == 0 or f_upper_tail(one.value / rest.value, one.degrees, rest.degrees) <= alpha


def _between(history: KnownNoise, runs: Variance | None) -> Variance | None:
    """What nights add. The difference of two variances has degrees of freedom by Satterthwaite (1946)."""
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
