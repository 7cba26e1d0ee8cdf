"""Simulated cases: a golden, earlier nights and tonight's runs, drawn from known noise."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from harness.night.noise import KnownNoise, known_noise
from harness.night.rules import Reference

LEVEL = 700.0
_STUDENT_DEGREES = 4


@dataclass(frozen=True)
class Scenario:
    """What is drawn. ``noise`` and ``night_noise``: relative standard deviations of a run and of what its night adds.

    ``heavy_tails``: runs follow Student's t with 4 degrees of freedom, scaled to the same deviation. ``tonight_times``:
    how much noisier tonight's runs are than all before. ``step_in_history``: the older half of the nights lies 3 % higher.
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


@dataclass(frozen=True)
class Drawn:
    """One case: its repeats and, after them, the runs that would confirm."""

    values: list[float]
    golden: Reference
    history: KnownNoise | None


def draws(scenario: Scenario, change: float, num: int, confirm: int, seed: int) -> Iterator[Drawn]:
    """Yield ``num`` cases with tonight's level at ``1 + change`` times the golden's; equal on every machine."""
    rng = np.random.default_rng(seed)
    for _ in range(num):
        golden = _night(rng, scenario, scenario.golden_runs)
        tonight = _night(rng, scenario, scenario.repeats + confirm, scenario.tonight_times) * (1 + change)
        nights = [_night(rng, scenario, scenario.repeats) for _ in range(scenario.history_nights)]
        if scenario.step_in_history:
            nights = [night * 1.03 for night in nights[: len(nights) // 2]] + nights[len(nights) // 2 :]
        spread = float(golden.std(ddof=1) / golden.mean()) if scenario.golden_runs > 1 else None
        yield Drawn(
            tonight.tolist(),
            Reference(float(np.median(golden)), spread, scenario.golden_runs),
            known_noise([night.tolist() for night in nights]) if nights else None,
        )


def _night(rng: np.random.Generator, scenario: Scenario, runs: int, times: float = 1.0) -> np.ndarray:
    """Return the figures of ``runs`` runs of one night."""
    if scenario.heavy_tails:
        deviations = rng.standard_t(_STUDENT_DEGREES, runs) / np.sqrt(_STUDENT_DEGREES / (_STUDENT_DEGREES - 2))
    else:
        deviations = rng.standard_normal(runs)
    added = rng.standard_normal() * scenario.night_noise
    figures: np.ndarray = LEVEL * (1 + deviations * scenario.noise * times + added)
    return figures
