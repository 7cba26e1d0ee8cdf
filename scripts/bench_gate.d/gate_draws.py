"""Simulated cases: a golden, earlier nights, tonight's and the next night's runs, drawn from a noise whose truth is known."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from harness.nightly.evidence import Reference
from harness.nightly.known_noise import KnownNoise, known_noise

LEVEL = 700.0
_STUDENT_DEGREES = 4
_ODD_LOSS = (0.3, 0.8)
_LEAST_SHIFT = -0.9  # tails reach further, and no run has a negative speed


@dataclass(frozen=True)
class Scenario:
    """What is drawn. ``noise`` and ``night_noise``: relative standard deviations of a run and of what its night adds.

    ``heavy_tails``: runs follow Student's t with 4 degrees of freedom, scaled to the same deviation. ``tonight_times``:
    how much noisier tonight's runs are than all before. ``step_in_history``: the older half of the nights lies 3 % higher.
    ``night_degrees``: nights follow Student's t, scaled to ``night_noise``; None: they are normal. ``drift``: correlation of
    a night with the next. ``odd_share``: of nights that lose 30 to 80 %, each history having at least one such. ``odd_night``:
    relative change of the seventh night. ``nights_before_golden``: of the history.
    """

    name: str
    noise: float = 0.01
    night_noise: float = 0.0
    heavy_tails: bool = False
    tonight_times: float = 1.0
    repeats: int = 5
    golden_runs: int = 5
    history_nights: int = 20
    step_in_history: bool = False
    night_degrees: float | None = None
    drift: float = 0.0
    odd_share: float = 0.0
    odd_night: float | None = None
    nights_before_golden: int = 0


@dataclass(frozen=True)
class Drawn:
    """One case: its repeats and, after them, the runs that would confirm; the same of the next night; the nights so far."""

    values: list[float]
    next_values: list[float]
    golden: Reference
    nights: list[list[float]]
    num_before_golden: int

    @cached_property
    def history(self) -> KnownNoise | None:
        return known_noise(self.nights, self.num_before_golden) if self.nights else None


def draws(scenario: Scenario, change: float, num: int, confirm: int, seed: int) -> Iterator[Drawn]:
    """Yield ``num`` cases with tonight and the next night at ``1 + change`` times their level; equal on every machine."""
    rng = np.random.default_rng(seed)
    before = scenario.nights_before_golden
    for _ in range(num):
        shifts = _shifts(rng, scenario)
        golden = _night(rng, scenario, scenario.golden_runs, shifts[before])
        runs = scenario.repeats + confirm
        tonight = _night(rng, scenario, runs, shifts[-2], scenario.tonight_times) * (1 + change)
        following = _night(rng, scenario, runs, shifts[-1], scenario.tonight_times) * (1 + change)
        earlier = [*shifts[:before], *shifts[before + 1 : -2]]
        nights = [_night(rng, scenario, scenario.repeats, shift) for shift in earlier]
        if scenario.step_in_history:
            nights = [night * 1.03 for night in nights[: len(nights) // 2]] + nights[len(nights) // 2 :]
        spread = float(golden.std(ddof=1) / golden.mean()) if scenario.golden_runs > 1 else None
        listed = [night.tolist() for night in nights]
        yield Drawn(
            tonight.tolist(),
            following.tolist(),
            Reference(float(np.median(golden)), spread, scenario.golden_runs),
            listed,
            before,
        )


def _shifts(rng: np.random.Generator, scenario: Scenario) -> np.ndarray:
    """Return what each night adds, relative: the history with the golden's in it, tonight, the next."""
    num = scenario.history_nights + 3
    degrees = scenario.night_degrees
    if degrees is None:
        drawn = rng.standard_normal(num)
    else:
        drawn = rng.standard_t(degrees, num) / np.sqrt(degrees / (degrees - 2))
    for i in range(1, num if scenario.drift else 0):
        drawn[i] = scenario.drift * drawn[i - 1] + np.sqrt(1 - scenario.drift**2) * drawn[i]
    shifts: np.ndarray = drawn * scenario.night_noise
    if scenario.odd_night is not None:
        shifts[7] = scenario.odd_night
    if scenario.odd_share:
        odd = rng.random(num) < scenario.odd_share
        odd[scenario.nights_before_golden] = False
        if not odd[:-3].any():  # not the night before, which would then be odd too often
            odd[rng.choice([i for i in range(num - 3) if i != scenario.nights_before_golden])] = True
        shifts = np.where(odd, -rng.uniform(*_ODD_LOSS, num), shifts)
    limited: np.ndarray = np.maximum(shifts, _LEAST_SHIFT)
    return limited


def _night(rng: np.random.Generator, scenario: Scenario, runs: int, shift: float, times: float = 1.0) -> np.ndarray:
    if scenario.heavy_tails:
        deviations = rng.standard_t(_STUDENT_DEGREES, runs) / np.sqrt(_STUDENT_DEGREES / (_STUDENT_DEGREES - 2))
    else:
        deviations = rng.standard_normal(runs)
    figures: np.ndarray = LEVEL * (1 + deviations * scenario.noise * times + shift)
    return figures
