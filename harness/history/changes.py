"""Level changes in a series of measurements."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Literal

from harness.history.series import Night
from harness.judge import statistics
from harness.judge.differences import Difference, differences
from harness.judge.metrics import Better
from harness.judge.statistics import t_quantile
from harness.nightly.known_noise import known_noise

MIN_NIGHTS = 3
MAX_NIGHTS = 400  # the search takes half a second for this many, and four times as long for twice as many
MAX_P_VALUE = 0.01
METHOD = "pelt-l2-1"  # raise it when the same values may give other points

_PENALTY = 3.0


@dataclass(frozen=True)
class ChangePoint:
    """A change of level; the value at ``index`` is the first of the new one. ``before`` and ``after``: the levels' means."""

    index: int
    before: float
    after: float
    p_value: float

    @property
    def fraction(self) -> float:
        """Return the change of the level, as a fraction of the earlier level."""
        return (self.after - self.before) / self.before


def obstacle() -> str:
    """Say why change points cannot be searched, in one sentence; empty if they can. Imports nothing."""
    missing = [name for name in ("ruptures", "scipy") if find_spec(name) is None]
    if not missing:
        return ""
    return f"No change points: {' and '.join(missing)} not installed (pip install 'mbr-perf[stats]')."


def change_points(values: Sequence[float]) -> tuple[ChangePoint, ...]:
    """Find edges between levels in the newest :data:`MAX_NIGHTS` of ``values``, which are positive; returns them in order.

    It drops edges whose sides do not differ by Welch's test at :data:`MAX_P_VALUE`, the weakest first. Needs
    ruptures and scipy, see :func:`obstacle`.
    """
    if len(values) < 2 * MIN_NIGHTS:
        return ()
    passed_over = max(0, len(values) - MAX_NIGHTS)
    points = _confirmed(values[passed_over:])
    return tuple(replace(point, index=point.index + passed_over) for point in points)


def _confirmed(values: Sequence[float]) -> list[ChangePoint]:
    edges = _edges(values)
    while True:
        found = [_point(values, edges, number) for number in range(len(edges))]
        weakest = max(found, key=lambda point: point.p_value, default=None)
        if weakest is None or weakest.p_value <= MAX_P_VALUE:
            return found
        edges.remove(weakest.index)


def _edges(values: Sequence[float]) -> list[int]:
    import numpy as np
    from ruptures import Pelt

    signal = np.asarray(values, dtype=float) / statistics.median(values)
    sigma = float(np.std(np.diff(signal))) / math.sqrt(2)
    if sigma == 0:
        return []
    search = Pelt(model="l2", min_size=MIN_NIGHTS, jump=1).fit(signal.reshape(-1, 1))
    return list(search.predict(pen=_PENALTY * math.log(len(values)) * sigma**2))[:-1]


def _point(values: Sequence[float], edges: Sequence[int], number: int) -> ChangePoint:
    start = edges[number - 1] if number else 0
    end = edges[number + 1] if number + 1 < len(edges) else len(values)
    before, after = values[start : edges[number]], values[edges[number] : end]
    p_value = _p_value(before, after)
    return ChangePoint(edges[number], statistics.mean(before), statistics.mean(after), p_value)


def _p_value(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the two-sided p-value of Welch's test; 0 for two different sides without spread."""
    from scipy.stats import ttest_ind_from_stats

    sides = [(statistics.mean(side), statistics.sample_stdev(side) or 0.0, len(side)) for side in (before, after)]
    if all(spread == 0 for _, spread, _ in sides):
        return 0.0 if sides[0][0] != sides[1][0] else 1.0
    return float(ttest_ind_from_stats(*sides[0], *sides[1], equal_var=False).pvalue)


COMMIT, HOST = "commit", "host"
# These change every night, so they matter only if the figure changed too.
EVERYDAY = (COMMIT, HOST)


def setup_of(night: Night) -> dict[str, str | None]:
    """Return software, devices and variables of the night's measurement, by name."""
    last = night.last
    hosts = sorted({record.hostname for record in night.counted or night.records})
    return {
        **last.versions,
        "driver": last.driver_version,
        "device": last.device_name,
        "container": last.container,
        COMMIT: last.git_commit,
        HOST: ", ".join(hosts),
        **{f"${name}": value for name, value in last.environment.items()},
    }


def changes(before: Night, after: Night) -> tuple[Difference, ...]:
    """Return the differences of two nights, software first, everyday ones last; skips facts that one did not record."""
    found = differences(setup_of(before), setup_of(after))
    known = [each for each in found if _knows(before, each.name) and _knows(after, each.name)]
    return tuple(sorted(known, key=lambda each: (*_place(each.name), each.name)))


def _place(name: str) -> tuple[bool, bool, bool]:
    return name in EVERYDAY, name.startswith("$"), name in ("driver", "device", "container")


def change_text(change: Difference) -> str:
    """``torch 2.9.1 -> 2.10.0``."""
    return f"{change.name} {_short(change.name, change.before)} -> {_short(change.name, change.after)}"


def _knows(night: Night, name: str) -> bool:
    """Return whether the night recorded it. Versions, driver and devices come from ranks, variables from the launch."""
    if name in EVERYDAY:
        return True
    return bool(night.last.environment if name.startswith("$") else night.last.versions)


def notable(found: Sequence[Difference]) -> tuple[Difference, ...]:
    """Return the changes other than commit and host."""
    return tuple(change for change in found if change.name not in EVERYDAY)


def _short(name: str, value: str | None) -> str:
    if value is None:
        return "none"
    return value[:10] + ("+" if value.endswith("+") else "") if name == COMMIT else value


TrendWord = Literal["new", "steady", "better", "worse", "other"]

# The level comes from this many nights before the newest; the noise needs at least so many of them.
LOOK_BACK, _LEAST = 20, 3
_CONFIDENCE = 0.99
_SMALLEST = 0.002


@dataclass(frozen=True)
class Trend:
    """``change`` of the newest night against the level of those before it, a fraction; ``allowed``: what noise explains.

    ``other``: a figure that should stay equal, and does not. All but the word are None for a case that is ``new``.
    """

    word: TrendWord
    level: float | None = None
    change: float | None = None
    allowed: float | None = None


def trend(values: Sequence[float], better: Better) -> Trend:
    """Compare the last of ``values``, one per night, with up to :data:`LOOK_BACK` before it; ValueError without values.

    Level and noise are those that the gate takes from history (`analysis.noise`): since the last step, if there is one.
    A value within the 99 % prediction interval of Student's t is steady, as is any change below 0.2 %. It is for
    reading: the gate judges by goldens and repeats.
    """
    if not values:
        raise ValueError("no values")
    known = known_noise([(value,) for value in values[-LOOK_BACK - 1 : -1]])
    if known is None or known.level is None or known.night_df < _LEAST - 1:
        return Trend("new")
    change = (values[-1] - known.level) / known.level
    quantile = t_quantile((1 + _CONFIDENCE) / 2, known.night_df)
    allowed = max(_SMALLEST, quantile * known.night_sd * math.sqrt(1 + 1 / known.num_nights))
    return Trend(_word(change, allowed, better), known.level, change, allowed)


def _word(change: float, allowed: float, better: Better) -> TrendWord:
    if abs(change) <= allowed:
        return "steady"
    if better == "equal":
        return "other"
    return "better" if (change > 0) == (better == "higher") else "worse"
