"""Simulated suites: for every case a golden, earlier nights and three new ones, drawn from a noise whose truth is known."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.judge.statistics import changes_around, levels
from harness.units import grouped

CASES_PER_NIGHT = 50
NEW_NIGHTS = 3
CONFIRM = 3
_TAILS = 4  # degrees of Student's t of runs with heavy tails
_ACCIDENT = (0.3, 0.8)
_LEAST_SHIFT = -0.9  # tails reach further, and no run has a negative speed


@dataclass(frozen=True)
class Scenario:
    """What is drawn. ``noise`` and ``night_noise``: relative standard deviations of a run and of what its night adds.

    ``heavy_tails``: runs follow Student's t with 4 degrees of freedom, scaled to the same deviation. ``wander``: what each run
    adds to the next of its night. ``tonight_times``: how much noisier the new nights' runs are. ``step``: the older half of the
    nights lies 3 % higher. ``night_degrees``: nights follow Student's t, scaled to ``night_noise``; None: they are normal.
    ``drift``: correlation of a night with the next. ``accidents``: the share of nights that lose 30 to 80 %. ``before_golden``:
    of the history. ``redrawn``: the share of a night's variance that the node of the confirming runs draws anew. ``series``:
    changes of nights to draw from, in place of ``night_noise``; the suite has as many cases.
    """

    name: str
    noise: float = 0.003
    night_noise: float = 0.0
    heavy_tails: bool = False
    wander: float = 0.0
    tonight_times: float = 1.0
    repeats: int = 5
    golden_runs: int = 5
    history: int = 40
    step: bool = False
    night_degrees: float | None = None
    drift: float = 0.0
    accidents: float = 0.0
    before_golden: int = 0
    redrawn: float = 0.0
    series: tuple[tuple[float, ...], ...] = ()

    @property
    def cases(self) -> int:
        return len(self.series) or CASES_PER_NIGHT


@dataclass(frozen=True)
class Drawn:
    """Rates around 1, by case: ``golden`` (cases, runs); the others (cases, nights, runs)."""

    golden: np.ndarray
    history: np.ndarray
    repeats: np.ndarray
    confirming: np.ndarray


def draw(scenario: Scenario, suites: int, seed: int) -> Drawn:
    """Draw the cases of so many suites, one suite after the other; equal on every machine."""
    rng, past = np.random.default_rng(seed), scenario.history + 1
    first, again = _shifts(rng, scenario, (suites * scenario.cases, past + NEW_NIGHTS))
    golden = _runs(rng, scenario, scenario.golden_runs, first[:, scenario.before_golden])
    history = _runs(rng, scenario, scenario.repeats, np.delete(first[:, :past], scenario.before_golden, 1))
    if scenario.step:
        history[:, : scenario.history // 2] *= 1.03
    runs = scenario.repeats + CONFIRM
    new = _runs(rng, scenario, runs, first[:, past:], scenario.tonight_times)
    new[..., scenario.repeats :] += (again - first)[:, past:, None]
    return Drawn(golden, history, new[..., : scenario.repeats], new[..., scenario.repeats :])


def _standard(rng: np.random.Generator, degrees: float | None, shape: tuple[int, ...]) -> np.ndarray:
    if degrees is None:
        return rng.standard_normal(shape)
    scaled: np.ndarray = rng.standard_t(degrees, shape) / np.sqrt(degrees / (degrees - 2))
    return scaled


def _shifts(rng: np.random.Generator, scenario: Scenario, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return what each night adds to its repeats, and to its confirming runs."""
    common, here, there = (_standard(rng, scenario.night_degrees, shape) for _ in range(3))
    for i in range(1, shape[1] if scenario.drift else 0):
        common[:, i] = scenario.drift * common[:, i - 1] + np.sqrt(1 - scenario.drift**2) * common[:, i]
    kept, new = np.sqrt(1 - scenario.redrawn), np.sqrt(scenario.redrawn)
    first, again = (scenario.night_noise * (kept * common + new * node) for node in (here, there))
    if scenario.series:
        drawn = [rng.choice(own, shape[1]) for _ in range(shape[0] // scenario.cases) for own in scenario.series]
        first = again = np.array(drawn)
    if scenario.accidents:
        had, stays = rng.random(shape) < scenario.accidents, rng.random(shape) >= scenario.redrawn
        had[:, scenario.before_golden] = False
        losses = -rng.uniform(*_ACCIDENT, shape)
        first, again = np.where(had, losses, first), np.where(had & stays, losses, again)
    return np.maximum(first, _LEAST_SHIFT), np.maximum(again, _LEAST_SHIFT)


def _runs(rng: np.random.Generator, scenario: Scenario, num: int, shifts: np.ndarray, times: float = 1.0) -> np.ndarray:
    shape = (*shifts.shape, num)
    noise = _standard(rng, _TAILS if scenario.heavy_tails else None, shape) * scenario.noise * times
    if scenario.wander:
        noise = noise + np.cumsum(rng.standard_normal(shape), axis=-1) * scenario.wander
    figures: np.ndarray = 1 + noise + shifts[..., None]
    return figures


def read_series(path: Path) -> tuple[tuple[float, ...], ...]:
    """Read ``series,...,throughput...`` rows in order of time; return by series each night's change from its level."""
    with path.open(newline="", encoding="utf-8") as file:
        values = grouped((row["series"], float(row["throughput_relative_to_median"])) for row in csv.DictReader(file))
    return tuple(tuple(changes_around(series, levels(series))) for series in values.values())
