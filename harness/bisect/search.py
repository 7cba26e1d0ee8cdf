"""The search for the first bad revision: from what was measured, what to measure next. Pure: starts nothing."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from harness.bisect import MOST_RUNS
from harness.judge.statistics import of_variances, welch

ENDS = (False, True, True, False, False, True, True, False)
"""The first runs by time: good (False), bad, and each under a second label: G B B' G' G' B' B G.

A drift of the machine affects all four equally."""

ENOUGH, LITTLE = 0.84, 0.12
"""A revision counts as the first bad one from the probability 0.84 on, if the next run would tell at most 0.12.

A run tells the variance of its expected time over the possible commits, in variances of a run. How often the answer is
right: `scripts/bench-gate --bisect`."""

SHOWN = 0.001
"""The largest p-value of the difference between both sides at which there is a change at all."""

AA_ALPHA = 0.002
"""The largest two-sided p-value at which a revision counts as different from itself."""

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
    """Nothing can be found, why, and what to do."""

    reason: str
    advice: str = "name other ends, or another --metric"


SAME = "good and bad revision do not differ"
_CALM = "end other work on this machine, or take another, then start a new bisect"
Step = Measure | Found | Undecided
Sample = tuple[int, float]
"""A place, and the logarithm of the seconds of a step."""


def next_run(samples: Sequence[Sample], places: Sequence[int], max_runs: int) -> Step:
    """Return the next run of a search by time: both ends, then where the possible commits differ the most."""
    good, bad = places[0], places[-1]
    if len(samples) < len(ENDS):
        return Measure(bad if ENDS[len(samples)] else good)
    if reason := _differs_from_itself([value for _, value in samples[: len(ENDS)]]):
        return Undecided(reason, _CALM)
    index = {place: number for number, place in enumerate(places)}
    usable = [(index[place], value) for place, value in samples if place in index]
    splits = _splits(usable, len(places))
    telling = splits.foreseen(2) - splits.foreseen(1) ** 2
    if not telling.any():
        return _more_of_the_ends(usable, places)
    best = int(splits.probability.argmax())
    probability = float(splits.probability[best])
    is_settled = probability >= ENOUGH and telling.max() <= LITTLE * splits.variance[best]
    if is_settled and _p_value(usable, best + 1) <= SHOWN:
        return Found(places[best + 1], places[best], probability)
    if len(samples) >= max_runs:
        reason = f"{max_runs} runs do not decide it; the likeliest place has a probability of {probability:.2f}"
        return Undecided(reason, f"--resume it with more --max_runs (at most {MOST_RUNS}), or {_CALM}")
    return Measure(places[int(telling.argmax())])


def _more_of_the_ends(samples: Sequence[Sample], places: Sequence[int]) -> Step:
    """Measure the ends again where bad came out no slower, perhaps by chance; not for ever."""
    is_faster = _p_value([(-place, value) for place, value in samples], 0) <= SHOWN
    if is_faster or len(samples) >= 3 * len(ENDS):
        return Undecided("the bad revision is no slower than the good one")
    num_good = sum(place == 0 for place, _ in samples)
    return Measure(places[0] if 2 * num_good <= len(samples) else places[-1])


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


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Splits:
    """Every place of the change, the first after good: its probability, the level of either side, a run's variance."""

    probability: Floats
    good: Floats
    bad: Floats
    variance: Floats

    def foreseen(self, power: int) -> Floats:
        """Return the expected power of the next result at each place: bad for changes up to there, else good."""
        good, bad = (self.probability * level**power for level in (self.good, self.bad))
        return float(good.sum()) + np.append(0.0, (bad - good).cumsum())


# Assumed before the runs: the variance of the change, in variances of a run; the noise, and the runs it is worth.
# A few runs often show less noise than there is. So the assumed noise counts until the runs show more.
_CHANGE, _NOISE, _NOISE_RUNS = 1.5, 0.02, 4


def _splits(samples: Sequence[Sample], num_places: int) -> _Splits:
    """Return the probabilities: two levels, not falling, with one unknown noise; all places equally likely before.

    The change has Zellner's g-prior (1986), the noise an inverse chi-square one. Steps of nights (`judge.statistics`)
    are a test that names one place or none; a search needs the probability of every place, also of unmeasured ones.
    """
    place, value = np.array([place for place, _ in samples]), np.array([value for _, value in samples])
    value -= value.mean()  # else squares of the logarithm would lose the small differences
    on_left = np.bincount(place, minlength=num_places).cumsum()[:-1]
    on_right = len(value) - on_left
    left_sum = np.bincount(place, weights=value, minlength=num_places).cumsum()[:-1]
    good, bad = np.minimum(left_sum, 0.0) / on_left, np.maximum(-left_sum, 0.0) / on_right
    explained, total = on_left * good**2 + on_right * bad**2, value @ value
    is_calm = total - explained.max() < _NOISE**2 * (len(value) - 3)  # fitted: both levels and the place
    num_known = _NOISE_RUNS if is_calm else 0
    wider = 1 + _CHANGE * on_left * on_right / len(value)
    rest = total + num_known * _NOISE**2 - explained * (1 - 1 / wider)
    degrees, rest = len(value) - 1 + num_known, np.maximum(rest, 1e-18)
    weight = -np.log(wider) / 2 - degrees / 2 * np.log(rest)
    probability = np.exp(weight - weight.max())
    return _Splits(probability / probability.sum(), good, bad, rest / degrees)


def _p_value(samples: Sequence[Sample], first_bad: int) -> float:
    """Return the one-sided p-value of the difference between both sides; each has the four runs of its end."""
    good, bad = ([value for place, value in samples if (place >= first_bad) is side] for side in (False, True))
    return welch(good, bad).upper_tail


def usual_number(kind: str, num_revisions: int) -> int:
    """Return how many traces a search takes, or about how many runs that vary by 2 %: 12 and 47 for 200 revisions."""
    ends, halvings = (len(ENDS), 5) if kind == "run" else (4, 1)
    return ends + math.ceil(halvings * math.log2(num_revisions))


def next_trace(values: Mapping[int, Sequence[Hashable]], places: Sequence[int]) -> Step:
    """Return the next trace of a search by figures that do not vary. Both ends are traced twice."""
    good, bad = places[0], places[-1]
    for end in (good, bad):
        if len(values.get(end, ())) < 2:
            return Measure(end)
        if len(set(values[end])) > 1:
            return Undecided("two traces of one revision differ: tracing cannot decide", "train with --metric time")
    if values[good][0] == values[bad][0]:
        return Undecided(SAME)
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
