"""Searches the first bad commit on simulated histories, by the code of `mbr-perf bisect`."""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from harness.bisect import MAX_RUNS
from harness.bisect.search import Found, Measure, Undecided, next_run, next_trace

COMMITS, GOAL_FOUND, _TAILS = 200, 0.95, 4  # degrees of Student's t
PLACES = tuple(range(COMMITS + 1))
Step = Found | Undecided


@dataclass(frozen=True)
class History:
    """``change``, ``noise``: relative. ``tails``: runs follow Student's t with 4 degrees, scaled to the same deviation.

    ``drift``: deviation of what the machine adds to a run, correlated by 0.99 with the next. ``goal``: of the median, per log2(n).
    """

    name: str
    change: float = 0.03
    noise: float = 0.02
    tails: bool = False
    drift: float = 0.0
    goal: float | None = None


BY_TIME = (
    History("time, runs vary by 2 %", goal=6),
    History("time, runs vary by 0.7 %", noise=0.007),
    History("time, runs vary by 1.3 %", noise=0.013),
    History("time, runs vary by 3 %", noise=0.03),
    History("time, 2 % with heavy tails (t, 4 degrees)", tails=True),
    History("time, 2 %, the machine drifts by 1 %", drift=0.01),
    History("time, 2 %, nothing changed", change=0.0),
)
BY_TRACE = (History("memory, +2 %", goal=2), History("settings, another recompute", goal=2))


def measure_bisects(histories: int, seed: int) -> list[dict[str, Any]]:
    """Return a row for each kind of history: shares found, named wrongly and left undecided; runs or traces needed."""
    rows = [_row(one, [_drawn(one, seed + i, n) for n in range(histories)]) for i, one in enumerate(BY_TIME)]
    for one, sides in zip(BY_TRACE, ((1_000_000, 1_020_000), ("mlp", "none")), strict=True):
        values = {bad: [sides[place >= bad] for place in PLACES] for bad in PLACES[1:]}
        rows.append(_row(one, [(bad, *by_trace(own.__getitem__)) for bad, own in values.items()]))
    return rows


def _row(history: History, ended: list[tuple[int, Step, int]]) -> dict[str, Any]:
    """``ended``: the first bad place, the answer and the runs of each search."""
    named = np.array([isinstance(step, Found) for _, step, _ in ended])
    found = np.array([isinstance(step, Found) and step.place == bad for bad, step, _ in ended])
    runs = [each for _, _, each in ended]
    row = {"found": found.mean(), "wrong": (named & ~found).mean(), "undecided": (~named).mean()}
    shares = {name: round(float(share), 4) for name, share in row.items()}
    needed = {"median_runs": float(np.median(runs)), "p90_runs": round(float(np.quantile(runs, 0.9)), 1)}
    missed = list[str]()
    if history.goal is not None:
        missed += ["found"] * (shares["found"] < GOAL_FOUND)
        missed += ["median_runs"] * (needed["median_runs"] > history.goal * math.log2(COMMITS))
    return {**asdict(history), "histories": len(ended), **shares, **needed, "missed": missed}


def _drawn(history: History, seed: int, number: int) -> tuple[int, Step, int]:
    rng = np.random.default_rng((seed, number))
    first_bad = int(rng.integers(1, COMMITS + 1))
    noise = rng.standard_t(_TAILS, MAX_RUNS) / math.sqrt(2) if history.tails else rng.standard_normal(MAX_RUNS)
    drift = rng.standard_normal(MAX_RUNS)
    for i in range(1, MAX_RUNS):
        drift[i] = 0.99 * drift[i - 1] + math.sqrt(1 - 0.99**2) * drift[i]
    ended = by_time(history.noise * noise + history.drift * drift, first_bad, history.change)
    return first_bad if history.change else 0, *ended


def by_time(values: np.ndarray, first_bad: int, change: float, places: Sequence[int] = PLACES) -> tuple[Step, int]:
    """Return the answer and the number of runs. ``values``: the runs' log times before the relative ``change``."""
    samples = list[tuple[int, float]]()
    while isinstance(step := next_run(samples, places, MAX_RUNS), Measure):
        samples.append((step.place, values[len(samples)] + math.log1p(change) * (step.place >= first_bad)))
    return step, len(samples)


def by_trace(value_of: Callable[[int], Hashable], places: Sequence[int] = PLACES) -> tuple[Step, int]:
    """Return the answer and the number of traces."""
    values: dict[int, list[Hashable]] = {}
    while isinstance(step := next_trace(values, places), Measure):
        values.setdefault(step.place, []).append(value_of(step.place))
    return step, sum(map(len, values.values()))
