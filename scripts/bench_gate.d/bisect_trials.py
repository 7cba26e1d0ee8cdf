"""Searches the first bad commit on simulated histories, by the code of `mbr-perf bisect`."""

import math
from collections.abc import Hashable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from harness.bisect.search import Found, Measure, next_run, next_trace

COMMITS, MAX_RUNS, GOAL_FOUND = 200, 150, 0.95
_PLACES = tuple(range(COMMITS + 1))
_TAILS = 4  # degrees of Student's t


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
    rows = [_row(one, [_by_time(one, seed + i, n) for n in range(histories)]) for i, one in enumerate(BY_TIME)]
    for one, sides in zip(BY_TRACE, ((1_000_000, 1_020_000), ("mlp", "none")), strict=True):
        rows.append(_row(one, [_by_trace(sides, place) for place in _PLACES[1:]]))
    return rows


def _row(history: History, ended: list[tuple[bool, bool, int]]) -> dict[str, Any]:
    found, named, runs = (np.array(column) for column in zip(*ended, strict=True))
    row = {"found": found.mean(), "wrong": (named & ~found).mean(), "undecided": (~named).mean()}
    shares = {name: round(float(share), 4) for name, share in row.items()}
    needed = {"median_runs": float(np.median(runs)), "p90_runs": round(float(np.quantile(runs, 0.9)), 1)}
    missed = list[str]()
    if history.goal is not None:
        missed += ["found"] * (shares["found"] < GOAL_FOUND)
        missed += ["median_runs"] * (needed["median_runs"] > history.goal * math.log2(COMMITS))
    return {**asdict(history), "histories": len(ended), **shares, **needed, "missed": missed}


def _by_time(history: History, seed: int, number: int) -> tuple[bool, bool, int]:
    rng = np.random.default_rng((seed, number))
    first_bad = int(rng.integers(1, COMMITS + 1))
    noise = rng.standard_t(_TAILS, MAX_RUNS) / math.sqrt(2) if history.tails else rng.standard_normal(MAX_RUNS)
    drift = rng.standard_normal(MAX_RUNS)
    for i in range(1, MAX_RUNS):
        drift[i] = 0.99 * drift[i - 1] + math.sqrt(1 - 0.99**2) * drift[i]
    values, samples = history.noise * noise + history.drift * drift, list[tuple[int, float]]()
    while isinstance(step := next_run(samples, _PLACES, MAX_RUNS), Measure):
        samples.append((step.place, values[len(samples)] + math.log1p(history.change) * (step.place >= first_bad)))
    place = step.place if isinstance(step, Found) else None
    return place == first_bad and history.change > 0, place is not None, len(samples)


def _by_trace(sides: tuple[Hashable, Hashable], first_bad: int) -> tuple[bool, bool, int]:
    values: dict[int, list[Hashable]] = {}
    while isinstance(step := next_trace(values, _PLACES), Measure):
        values.setdefault(step.place, []).append(sides[step.place >= first_bad])
    place = step.place if isinstance(step, Found) else None
    return place == first_bad, place is not None, sum(map(len, values.values()))
