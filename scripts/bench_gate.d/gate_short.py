"""How a rule of five lines would do in place of the nightly gate, where confirming runs may go to another node.

The rule: take the median of tonight's runs; compare it with the median of the nights (below five nights, with the golden);
beyond the threshold and three deviations of the nights it is suspicious; a suspicious case runs three more times; it is red if
these agree. A deviation is 1.4826 times the median absolute one, and at least what runs themselves explain.
"""

from dataclasses import dataclass

import numpy as np
from gate_draws import LEVEL, Scenario
from gate_rows import HEAVY, OTHERS, USUAL
from gate_trials import CASES_PER_NIGHT, THRESHOLD

_CONFIRM, _NIGHTS, _DEVIATIONS, _MIN_NIGHTS = 3, 3, 3.0, 5
_MAD_TO_SD, _MEDIAN_TO_MEAN, _UNKNOWN = 1.4826, 1.2533, 0.01  # two factors of the normal distribution; a spread
SHARES = (0.0, 0.5, 1.0)
"""How much of the variance of a night another node draws anew; 0: there is no other node."""
_CHANGES = (("minus_8_first_night", -0.08, 1), ("minus_6_second_night", -0.06, 2), ("minus_5_third_night", -0.05, 3))
LIMITS = {"minus_8_first_night": 0.95, "minus_6_second_night": 0.90, "minus_5_third_night": 0.80, "false_red": 0.01}
"""What a rule should reach where nights deviate by at most 1.3 %; ``false_red``, of nights, is a limit from above."""
_QUIET = Scenario("nights differ by 1.3 %", noise=0.003, night_noise=0.013)
_SCENARIOS = tuple(each for each in (USUAL, _QUIET, *OTHERS, *HEAVY) if not each.step_in_history)
_SEED = 20261128


@dataclass(frozen=True)
class _Cases:
    """Many cases at once: ``golden`` (cases,), ``nights`` (cases, nights, runs), three new nights and their confirmations."""

    golden: np.ndarray
    nights: np.ndarray
    tonight: np.ndarray
    confirming: np.ndarray


def _drawn(scenario: Scenario, share: float, change: float, cases: int, seed: int) -> _Cases:
    """Draw cases whose nights after the history are at ``1 + change`` times their level."""
    rng, before, past = np.random.default_rng(seed), scenario.nights_before_golden, scenario.history_nights + 1
    shape = (cases, past + _NIGHTS)

    def standard(degrees: float | None, shape: tuple[int, ...]) -> np.ndarray:
        if degrees is None:
            return rng.standard_normal(shape)
        scaled: np.ndarray = rng.standard_t(degrees, shape) / np.sqrt(degrees / (degrees - 2))
        return scaled

    def runs(shifts: np.ndarray, num: int, times: float) -> np.ndarray:
        noise = standard(4 if scenario.heavy_tails else None, (*shifts.shape, num)) * scenario.noise
        figures: np.ndarray = LEVEL * (1 + noise * times + np.maximum(shifts, -0.9)[..., None])
        return figures

    common, here, there = (standard(scenario.night_degrees, shape) for _ in range(3))
    for i in range(1, shape[1] if scenario.drift else 0):
        common[:, i] = scenario.drift * common[:, i - 1] + np.sqrt(1 - scenario.drift**2) * common[:, i]
    first, second = (
        scenario.night_noise * (np.sqrt(1 - share) * common + np.sqrt(share) * node) for node in (here, there)
    )
    if scenario.odd_share:
        (odd, elsewhere), stays = rng.random((2, *shape)) < scenario.odd_share, rng.random(shape) >= share
        odd[:, before] = False
        losses = -rng.uniform(0.3, 0.8, (2, *shape))
        first = np.where(odd, losses[0], first)
        second = np.where(odd & stays, losses[0], np.where(elsewhere & ~stays, losses[1], second))
    times, new = scenario.tonight_times, 1 + change
    return _Cases(
        np.median(runs(first[:, before], scenario.golden_runs, 1.0), axis=-1),
        runs(np.delete(first[:, :past], before, 1), scenario.repeats, 1.0),
        runs(first[:, past:], scenario.repeats, times) * new,
        runs(second[:, past:], _CONFIRM, times) * new,
    )


def _red(cases: _Cases) -> np.ndarray:
    """Return which cases the rule calls red on which of the three nights: (cases, 3)."""
    level, spread = cases.golden, np.full(len(cases.golden), _UNKNOWN)
    if cases.nights.shape[1] >= _MIN_NIGHTS:
        medians = np.median(cases.nights, axis=-1)
        level = np.median(medians, axis=-1)
        spread = _MAD_TO_SD * np.median(abs(medians - level[:, None]), axis=-1) / level
        spread = np.maximum(spread, np.median(_error(cases.nights, level), axis=-1))
    least = np.maximum(THRESHOLD, _DEVIATIONS * np.maximum(spread[:, None], _error(cases.tonight, level)))
    both = np.concatenate([cases.tonight, cases.confirming], axis=-1)
    red: np.ndarray = np.ones(both.shape[:2], dtype=bool)
    for runs in (cases.tonight, both):
        red &= np.median(runs, axis=-1) / level[:, None] - 1 < -least
    red &= np.median(cases.confirming, axis=-1) / level[:, None] - 1 < -_DEVIATIONS * spread[:, None]
    return red


def _error(runs: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Return the relative error of the median of each night's runs; 0 for one run."""
    num = runs.shape[-1]
    if num < 2:
        return np.zeros(runs.shape[:-1])
    found: np.ndarray = runs.std(axis=-1, ddof=1) * _MEDIAN_TO_MEAN / np.sqrt(num) / level[:, None]
    return found


def short_rule(nights: int, cases: int) -> list[dict[str, object]]:
    """Return a row per scenario and share."""
    return [_row(number, share, nights, cases) for number in range(len(_SCENARIOS)) for share in SHARES]


def _row(number: int, share: float, nights: int, cases: int) -> dict[str, object]:
    scenario, seed = _SCENARIOS[number], _SEED + 10 * number
    red = _red(_drawn(scenario, share, 0.0, nights * CASES_PER_NIGHT, seed))[:, 0]
    figures = {"false_red": float(red.reshape(nights, CASES_PER_NIGHT).any(axis=1).mean())}
    for offset, (name, change, within) in enumerate(_CHANGES, 1):
        found = _red(_drawn(scenario, share, change, cases, seed + offset))
        figures[name] = float(found[:, :within].any(axis=1).mean())
    return {"scenario": scenario.name, "redrawn": share, **figures}
