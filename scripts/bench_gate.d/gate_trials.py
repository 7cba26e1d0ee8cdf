"""Judges cases as a night does, and counts the regressions."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from gate_draws import Drawn, Scenario, draws
from scipy.stats import binomtest

from harness.judge.gate import Verdict, compare_values
from harness.nightly.known_noise import KnownNoise, known_noise
from harness.nightly.rules import SMALLEST_EFFECT, SUSPICION_SHARE, NightBefore, TimeLimits, is_suspicious, judge_time
from harness.nightly.values import FALSE_ALARMS_PER_NIGHT
from harness.records.metrics import METRICS

CASES_PER_NIGHT = 50
THRESHOLD = 0.05
_LIMITS = TimeLimits(THRESHOLD, FALSE_ALARMS_PER_NIGHT / CASES_PER_NIGHT)
_THROUGHPUT = next(metric for metric in METRICS if metric.name == "tflops_per_gpu")


@dataclass(frozen=True)
class Rate:
    """``count`` of ``num``, with Wilson's 95 % interval."""

    count: int
    num: int

    @property
    def value(self) -> float:
        return self.count / self.num

    @property
    def interval(self) -> tuple[float, float]:
        """Return Wilson's interval (1927), which also holds for counts near zero."""
        found = binomtest(self.count, self.num).proportion_ci(method="wilson")
        return float(found.low), float(found.high)

    def document(self) -> dict[str, object]:
        """Return the rate for JSON."""
        low, high = self.interval
        return {**asdict(self), "rate": self.value, "interval_95": [round(low, 6), round(high, 6)]}


@dataclass(frozen=True)
class Judged:
    """One case: the verdict with confirmation, whether it was asked for, and what 5 % on the first run alone says."""

    verdict: Verdict
    was_confirmed: bool
    is_plain_regression: bool


def judged(drawn: Drawn, repeats: int) -> Judged:
    """Judge as a night does: the repeats, and the further runs only where these look like a regression."""
    if _is_clear(drawn, repeats):
        return Judged(Verdict.PASS, was_confirmed=False, is_plain_regression=_is_plain_regression(drawn, drawn.values))
    before = None
    if len(drawn.nights) > drawn.num_before_golden:
        before = NightBefore(drawn.nights[-1], known_noise(drawn.nights[:-1], drawn.num_before_golden))
    return _judged(drawn, drawn.values, repeats, drawn.history, before)


def judged_next(drawn: Drawn, repeats: int) -> Judged:
    """Judge the night after, with tonight among the nights before it."""
    nights = [*drawn.nights, drawn.values]
    before = NightBefore(drawn.values, drawn.history)
    return _judged(drawn, drawn.next_values, repeats, known_noise(nights, drawn.num_before_golden), before)


def _judged(
    drawn: Drawn, values: list[float], repeats: int, history: KnownNoise | None, before: NightBefore | None
) -> Judged:
    first = judge_time(_THROUGHPUT, values[:repeats], drawn.golden, history, _LIMITS, before)
    confirms = len(values) > repeats and is_suspicious(_THROUGHPUT, first)
    last = judge_time(_THROUGHPUT, values, drawn.golden, history, _LIMITS, before) if confirms else first
    return Judged(last.verdict, confirms, _is_plain_regression(drawn, values))


def _is_plain_regression(drawn: Drawn, values: list[float]) -> bool:
    return compare_values(_THROUGHPUT, values[0], drawn.golden.value, THRESHOLD).verdict is Verdict.REGRESSION


def _is_clear(drawn: Drawn, repeats: int) -> bool:
    """Return whether the case passes, whatever its noise: it is not worse than the golden or any night by half of the least effect.

    Saves the search for steps and odd nights in most cases.
    """
    highest = max([drawn.golden.value, *(math.fsum(night) / len(night) for night in drawn.nights)])
    least = min(statistics.harmonic_mean(drawn.values[:repeats]), statistics.harmonic_mean(drawn.values))
    return least > highest * (1 - SMALLEST_EFFECT * SUSPICION_SHARE)


@dataclass(frozen=True)
class FalseAlarms:
    """Nights of :data:`CASES_PER_NIGHT` cases in which nothing changed."""

    false_alarm: Rate
    inconclusive: Rate
    plain_gate_false_alarm: Rate
    confirmed_cases_per_night: float


def false_alarms(scenario: Scenario, nights: int, confirm: int, seed: int) -> FalseAlarms:
    """Count the nights with a case called a regression, or inconclusive, although nothing changed."""
    cases = draws(scenario, 0.0, nights * CASES_PER_NIGHT, confirm, seed)
    found = [[judged(next(cases), scenario.repeats) for _ in range(CASES_PER_NIGHT)] for _ in range(nights)]
    return FalseAlarms(
        _rate(any(case.verdict is Verdict.REGRESSION for case in night) for night in found),
        _rate(any(case.verdict is Verdict.INCONCLUSIVE for case in night) for night in found),
        _rate(any(case.is_plain_regression for case in night) for night in found),
        round(sum(case.was_confirmed for night in found for case in night) / nights, 4),
    )


@dataclass(frozen=True)
class Detection:
    """Cases that are slower by ``-change``: found tonight or by the next night, at least not passed, found on one run by 5 %."""

    change: float
    regression: Rate
    by_second_night: Rate
    not_passed: Rate
    plain_gate: Rate


def detection(scenario: Scenario, change: float, cases: int, confirm: int, seed: int) -> Detection:
    """Count the cases with that true change that are found."""
    drawn = list(draws(scenario, change, cases, confirm, seed))
    found = [judged(case, scenario.repeats) for case in drawn]
    later = [
        first.verdict is Verdict.REGRESSION or judged_next(case, scenario.repeats).verdict is Verdict.REGRESSION
        for case, first in zip(drawn, found, strict=True)
    ]
    return Detection(
        change,
        _rate(case.verdict is Verdict.REGRESSION for case in found),
        _rate(later),
        _rate(case.verdict in (Verdict.REGRESSION, Verdict.INCONCLUSIVE) for case in found),
        _rate(case.is_plain_regression for case in found),
    )


def _rate(hits: Iterable[bool]) -> Rate:
    listed = list(hits)
    return Rate(sum(listed), len(listed))
