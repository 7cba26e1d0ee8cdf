"""The rule for times, in five lines. The guide has the same.

1. Compare the median of tonight's runs with the golden; from five nights at the golden's level on, with their median.
2. A spread is 1.4826 times the median distance of the nights from their level, and at least what the runs themselves
   spread.
3. Worse than the threshold and than three spreads is suspicious. So are three nights that are each worse than half the
   threshold, if their median is worse than the threshold less a spread.
4. A suspicious case runs again at once. It is red if the confirming runs, the night before or three nights agree, else
   yellow. If any case of the suite had a single night that bad in the last 40, the first bad night is yellow and the
   second is red.
5. If most cases are worse, that is one finding.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

from harness.judge.gate import Verdict, compare_values
from harness.judge.statistics import DEVIATIONS, MIN_NIGHTS, changes_around, levels, spread_around
from harness.nightly.values import Accident, AllowedBy, CaseFinding, Evidence
from harness.records.metrics import Metric
from harness.units import format_percent, format_share

LOOK_BACK = 40
"""Nights that count. Where one of N nights has an accident, 40 nights without one and then one are seen in at most 9 of
1,000 nights, whatever N is: (1 - 1/N) ** 40 / N."""

UNKNOWN_SPREAD = 0.0125
"""Nights of one machine commonly differ by about 1 %. It counts until enough nights show how much they do."""

GROSS_THRESHOLDS = 2
"""An accident of twice the threshold has no typical size: the next may be worse than any before."""

LASTING_NIGHTS = 3
"""So many nights that are worse alike, tonight's among them, show a change that one night alone cannot."""

_OPEN = "a regression if the next night agrees"
UNCONFIRMED = f"no run confirmed it: {_OPEN}"

_ROUNDING = 1e-9  # a change equal to the threshold passes
_MEDIAN_OVER_MEAN = math.sqrt(math.pi / 2)  # error of the median of normal values over that of their mean


@dataclass(frozen=True)
class Reference:
    """The golden's figure: the median of ``num_runs`` runs, with their relative standard deviation ``spread``."""

    value: float
    spread: float | None
    num_runs: int

    @property
    def error(self) -> float:
        return _MEDIAN_OVER_MEAN * (self.spread or 0.0) / math.sqrt(self.num_runs)


@dataclass(frozen=True)
class Night:
    """Figures of one night. ``is_older``: it began before the golden was promoted. Red ones set no level."""

    values: Sequence[float]
    is_older: bool = False
    is_red: bool = False

    @cached_property
    def value(self) -> float:
        return median(self.values)

    @cached_property
    def error(self) -> float:
        """Return the relative error of the median that the runs themselves show; 0 for one run."""
        num = len(self.values)
        mean = math.fsum(self.values) / num
        squares = math.fsum((value - mean) ** 2 for value in self.values)  # statistics.stdev is slow
        return _MEDIAN_OVER_MEAN * math.sqrt(squares / max(1, num - 1) / num) / self.value


@dataclass(frozen=True)
class Level:
    """What tonight is compared with: nights, or 0 nights for the golden. ``spread``: relative, of the difference."""

    value: float
    spread: float
    num_nights: int


def level_of(nights: Sequence[Night], golden: Reference) -> Level:
    """Return the level of the nights around the golden; the golden alone, if these are fewer than five."""
    usable = [night for night in nights[-LOOK_BACK:] if not night.is_red]
    if len(usable) < MIN_NIGHTS:
        return Level(golden.value, math.sqrt(2) * max(UNKNOWN_SPREAD, golden.error), 0)
    place = sum(night.is_older for night in usable)
    series = [night.value for night in usable]
    found = levels([*series[:place], golden.value, *series[place:]])
    parts = [range(part.start - (part.start > place), part.stop - (part.stop > place)) for part in found]
    spread = _spread(series, [part for part in parts if part], usable)
    own = next(part for part, with_golden in zip(parts, found, strict=True) if place in with_golden)
    if len(own) < MIN_NIGHTS:
        return Level(golden.value, math.sqrt(2) * max(spread, golden.error), 0)
    return Level(median(series[own.start : own.stop]), spread, len(own))


def _spread(series: Sequence[float], parts: Sequence[range], nights: Sequence[Night]) -> float:
    return max(spread_around(series, parts), median(night.error for night in nights))


@dataclass(frozen=True)
class _Tonight:
    """A case tonight: its runs against the level. ``limit``: beyond it a change is suspicious."""

    metric: Metric
    repeats: Sequence[float]
    confirming: Sequence[float]
    nights: Sequence[Night]
    level: Level
    threshold: float

    @cached_property
    def night(self) -> Night:
        return Night([*self.repeats, *self.confirming])

    @cached_property
    def spread(self) -> float:
        return max(self.level.spread, self.night.error)

    @property
    def limit(self) -> float:
        return max(self.threshold, DEVIATIONS * self.spread)

    @property
    def limit_together(self) -> float:
        """Return the limit of what is worse beside tonight's first runs: confirming runs, or three nights."""
        return max(self.threshold - self.spread, DEVIATIONS * self.spread)

    def worse(self, value: float) -> float:
        """Return by how much a value is worse than the level, as a share; below 0 if it is better."""
        return self.metric.worsening(value / self.level.value - 1)

    def text(self, value: float) -> str:
        """Return ``-6.1 %``, from the level."""
        return format_percent(value / self.level.value - 1)

    @property
    def alike(self) -> Night | None:
        """Return the night before, if it is suspicious and as bad within half the threshold, or three spreads."""
        before = self.nights[-1] if self.nights and not self.nights[-1].is_older else None
        if before is None or self.worse(before.value) <= self.limit:
            return None
        difference = abs(self.worse(self.night.value) - self.worse(before.value))
        return before if difference <= max(self.threshold / 2, DEVIATIONS * self.spread) else None

    @property
    def is_bad(self) -> bool:
        return self.worse(self.night.value) > self.limit

    @property
    def is_lasting(self) -> bool:
        """Return whether tonight and the two nights before it are worse together, than the nights before them, too."""
        earlier, last = self.nights[: 1 - LASTING_NIGHTS], self.nights[1 - LASTING_NIGHTS :]
        if len(last) < LASTING_NIGHTS - 1 or last[0].is_older:
            return False
        each = [self.worse(night.value) for night in (*last, self.night)]
        recent = [self.worse(night.value) for night in earlier if not night.is_red][-MIN_NIGHTS:]
        least = max(0.0, median(recent)) if recent else 0.0
        return min(each) - least > self.threshold / 2 and median(each) > self.limit_together


def judge_time(
    metric: Metric,
    runs: tuple[Sequence[float], Sequence[float]],
    golden: Reference,
    nights: Sequence[Night],
    threshold: float,
    accident: Accident | None = None,
    *,
    allowed_by: AllowedBy = "default",
) -> CaseFinding:
    """Judge one figure by the five lines.

    ``runs``: the rates of the repeats, and of the confirming runs. ``nights``: oldest first, without tonight.
    ``accident``: the worst single night of any case of the suite. ``allowed_by``: what sets ``threshold``.
    """
    every = [value for side in runs for value in side]
    plain = compare_values(metric, median(every) if every else None, golden.value, threshold)
    if plain.change is None:
        return CaseFinding(**vars(plain), allowed_by=allowed_by)
    tonight = _Tonight(metric, *runs, nights, level_of(nights, golden), threshold + _ROUNDING)
    verdict, reason = _verdict(tonight, accident)
    if abs(off := golden.value / tonight.level.value - 1) > threshold:
        odd = f"the golden is {format_percent(off)} off the nights around it: promote it again"
        reason = f"{reason}; {odd}" if reason else odd
    if (noise := DEVIATIONS * tonight.spread) > threshold:
        threshold, allowed_by = noise, "3 spreads"
    evidence = Evidence(
        level=tonight.level.value,
        spread=tonight.spread,
        limit=threshold,
        num_nights=tonight.level.num_nights,
        num_runs=len(every),
        num_golden_runs=golden.num_runs,
        is_suspicious=tonight.is_bad or tonight.is_lasting,
    )
    judged = replace(plain, threshold=threshold, verdict=verdict, reason=reason)
    return CaseFinding(**vars(judged), allowed_by=allowed_by, evidence=evidence)


def _verdict(tonight: _Tonight, accident: Accident | None) -> tuple[Verdict, str]:
    now = tonight.night.value
    if tonight.is_bad or tonight.is_lasting:
        return _decided(tonight, accident)
    if tonight.confirming and tonight.worse(median(tonight.repeats)) > tonight.threshold:
        return Verdict.INCONCLUSIVE, _disagreement(tonight)
    if tonight.worse(now) > tonight.threshold:
        noise = f"{tonight.text(now)} is within the noise: a spread is {format_share(tonight.spread)}"
        return Verdict.INCONCLUSIVE, f"{noise}, and {DEVIATIONS:g} of them are {format_share(tonight.limit)}"
    return Verdict.IMPROVEMENT if -tonight.worse(now) > tonight.limit else Verdict.PASS, ""


def _decided(tonight: _Tonight, accident: Accident | None) -> tuple[Verdict, str]:
    if tonight.alike:
        return Verdict.REGRESSION, f"the night before had {tonight.text(tonight.alike.value)}"
    if tonight.is_lasting:
        return Verdict.REGRESSION, f"the third night that is worse by more than {format_share(tonight.threshold / 2)}"
    if not tonight.confirming:
        return Verdict.INCONCLUSIVE, UNCONFIRMED
    if tonight.worse(median(tonight.confirming)) <= tonight.limit_together:
        return Verdict.INCONCLUSIVE, _disagreement(tonight)
    now = tonight.worse(tonight.night.value)
    if accident and abs(accident.change) >= min(now, GROSS_THRESHOLDS * tonight.threshold):
        return Verdict.INCONCLUSIVE, f"{accident.text}: {_OPEN}"
    return Verdict.REGRESSION, ""


def _disagreement(tonight: _Tonight) -> str:
    first, again = (tonight.text(median(runs)) for runs in (tonight.repeats, tonight.confirming))
    return f"{first} at first, {again} in the confirming runs: {_OPEN}"


def accident_in(nights: Sequence[Night], threshold: float) -> float | None:
    """Return the largest relative change of a single night that the next did not repeat; None without one."""
    last = nights[-LOOK_BACK:]
    series = [night.value for night in last]
    if len(series) < MIN_NIGHTS or max(series) / min(series) - 1 <= threshold:
        return None
    parts = levels(series)
    limit = max(threshold, DEVIATIONS * _spread(series, parts, last))
    changes = changes_around(series, parts)
    far = [abs(change) > limit for change in changes]
    single = [change for i, change in enumerate(changes[:-1]) if far[i] and not far[i + 1] and not (i and far[i - 1])]
    return max(single, key=abs, default=None)
