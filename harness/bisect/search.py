"""The search for the first bad revision: from what was measured, what to measure next. Pure: starts nothing."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean

from harness.judge.statistics import of_variances, welch

ENOUGH = 0.95
"""The least probability at which one revision counts as the first bad one."""

SHOWN = 0.001
"""The largest p-value of the difference between both sides at which there is a change at all."""

AA_ALPHA = 0.002
"""The largest two-sided p-value at which a revision counts as different from itself."""

# Good, bad, and each under a second label: G B B' G' G' B' B G. A drift of the machine affects all four equally.
_ENDS = (False, True, True, False, False, True, True, False)
_FIRST_LABEL, _SECOND_LABEL = ((0, 7), (1, 6)), ((3, 4), (2, 5))


@dataclass(frozen=True)
class Measure:
    """Measure the revision at this place next."""

    place: int


@dataclass(frozen=True)
class Found:
    """The revision at ``place`` is the first bad one; the one at ``before`` the last good one."""

    place: int
    before: int
    probability: float = 1.0


@dataclass(frozen=True)
class Undecided:
    """Nothing can be found, and why."""

    reason: str


Step = Measure | Found | Undecided
Sample = tuple[int, float]
"""A place, and the logarithm of the seconds of a step."""


def next_run(samples: Sequence[Sample], places: Sequence[int], max_runs: int) -> Step:
    """Return the next run of a search by time. ``places``: those that can be measured, good first and bad last.

    First both ends, each under two labels. Then the run that tells most about where the level changes, until one place
    has a probability of :data:`ENOUGH`. The levels of both sides and their noise are unknown and the same for all.
    """
    good, bad = places[0], places[-1]
    if len(samples) < len(_ENDS):
        return Measure(bad if _ENDS[len(samples)] else good)
    if reason := _differs_from_itself([value for _, value in samples[: len(_ENDS)]]):
        return Undecided(reason)
    index = {place: number for number, place in enumerate(places)}
    usable = [(index[place], value) for place, value in samples if place in index]
    splits = _splits(usable, len(places))
    if not splits:
        return _more_of_the_ends(usable, places)
    best = max(splits, key=lambda split: split.probability)
    if best.probability >= ENOUGH and _p_value(usable, best.first_bad) <= SHOWN:
        return Found(places[best.first_bad], places[best.first_bad - 1], best.probability)
    if len(samples) >= max_runs:
        return Undecided(
            f"{len(samples)} runs do not decide it; the likeliest place has a probability of {best.probability:.2f}"
        )
    return Measure(places[_most_telling(splits, usable, len(places))])


_MOST_OF_ENDS = 3 * len(_ENDS)


def _more_of_the_ends(samples: Sequence[Sample], places: Sequence[int]) -> Step:
    """Measure the ends again where bad came out faster than good, perhaps by chance; not for ever."""
    bad = len(places) - 1
    is_faster = _p_value([(bad - place, value) for place, value in samples], bad) <= SHOWN
    if is_faster or len(samples) >= _MOST_OF_ENDS:
        return Undecided("the bad revision is no slower than the good one")
    num_good = sum(place == 0 for place, _ in samples)
    return Measure(places[0] if 2 * num_good <= len(samples) else places[bad])


def _differs_from_itself(values: Sequence[float]) -> str:
    """Say that a revision differs from itself, so that this machine decides nothing; empty if it does not."""
    groups = [[values[i] for i in pair] for labels in (_FIRST_LABEL, _SECOND_LABEL) for pair in labels]
    spread = math.fsum((value - fmean(group)) ** 2 for group in groups for value in group) / len(groups)
    for name, first, second in (("good", groups[0], groups[2]), ("bad", groups[1], groups[3])):
        found = of_variances(fmean(second) - fmean(first), [(spread, len(groups))])
        if found.p_value <= AA_ALPHA:
            change = math.expm1(found.difference) * 100
            return f"the {name} revision differs from itself by {change:+.1f} %: this machine cannot decide"
    return ""


@dataclass(frozen=True)
class _Split:
    """A place of the change with its probability, and the mean of either side."""

    first_bad: int
    probability: float
    good: float
    bad: float


def _splits(samples: Sequence[Sample], num_places: int) -> list[_Split]:
    """Return the places at which the level may rise, with their probabilities.

    Student's likelihood of two levels with one unknown noise, all levels and places equally likely before. The steps of
    nights (`judge.levels`) are a test that names one place or none; a search needs the probability of every place, also
    of those that nobody measured.
    """
    sums, squares = [0.0] * num_places, math.fsum(value * value for _, value in samples)
    counts = [0] * num_places
    for place, value in samples:
        sums[place] += value
        counts[place] += 1
    num, total = len(samples), math.fsum(sums)
    found: list[tuple[float, int, float, float]] = []
    left_sums, left_counts = list(accumulate(sums)), list(accumulate(counts))
    for first_bad in range(1, num_places):
        on_left = left_counts[first_bad - 1]
        on_right = num - on_left
        good, bad = left_sums[first_bad - 1] / on_left, (total - left_sums[first_bad - 1]) / on_right
        if bad > good:
            rest = max(squares - on_left * good * good - on_right * bad * bad, 1e-18)
            weight = -0.5 * math.log(on_left * on_right) - (num - 2) / 2 * math.log(rest)
            found.append((weight, first_bad, good, bad))
    if not found:
        return []
    most = max(weight for weight, *_ in found)
    scale = math.fsum(math.exp(weight - most) for weight, *_ in found)
    return [_Split(place, math.exp(weight - most) / scale, good, bad) for weight, place, good, bad in found]


def _most_telling(splits: Sequence[_Split], samples: Sequence[Sample], num_places: int) -> int:
    """Return the place whose result the splits foresee most differently; among equals the least measured one."""
    counts = [0] * num_places
    for place, _ in samples:
        counts[place] += 1
    centre = fmean(value for _, value in samples)  # else squares of the logarithm would lose the small differences
    first, second = [0.0] * (num_places + 1), [0.0] * (num_places + 1)
    for split in splits:  # its places below foresee the good level, the others the bad one; as differences, for sums
        good, bad = split.good - centre, split.bad - centre
        first[0] += split.probability * good
        second[0] += split.probability * good * good
        first[split.first_bad] += split.probability * (bad - good)
        second[split.first_bad] += split.probability * (bad * bad - good * good)
    means, squares = list(accumulate(first))[:num_places], list(accumulate(second))[:num_places]
    telling = [square - mean * mean for mean, square in zip(means, squares, strict=True)]
    enough = 0.99 * max(telling)
    return min((place for place in range(num_places) if telling[place] >= enough), key=lambda place: counts[place])


def _p_value(samples: Sequence[Sample], first_bad: int) -> float:
    """Return the one-sided p-value of the difference between both sides; each has the four runs of its end."""
    good, bad = ([value for place, value in samples if (place >= first_bad) is side] for side in (False, True))
    return welch(good, bad).upper_tail


def next_trace(values: Mapping[int, Sequence[Hashable]], places: Sequence[int]) -> Step:
    """Return the next trace of a search by figures that do not vary. Both ends are traced twice."""
    good, bad = places[0], places[-1]
    for end in (good, bad):
        if len(values.get(end, ())) < 2:
            return Measure(end)
        if len(set(values[end])) > 1:
            return Undecided("two traces of one revision differ: this machine cannot decide")
    if values[good][0] == values[bad][0]:
        return Undecided("good and bad revision do not differ")
    low, high = 0, len(places) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if not values.get(places[middle]):
            return Measure(places[middle])
        if _is_bad(values[places[middle]][0], values[good][0], values[bad][0]):
            high = middle
        else:
            low = middle
    return Found(places[high], places[low])


def _is_bad(value: Hashable, good: Hashable, bad: Hashable) -> bool:
    """Return whether a value belongs to the bad side: a number nearer to it, or a text that is not the good one."""
    if isinstance(value, int) and isinstance(good, int) and isinstance(bad, int):
        return abs(value - bad) < abs(value - good)
    return value != good
