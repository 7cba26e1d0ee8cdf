"""Level changes in a series of measurements."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Literal

from harness.history.series import Night
from harness.judge.statistics import DEVIATIONS, MIN_NIGHTS, levels, spread_around, welch
from harness.records.golden import Difference, differences
from harness.records.metrics import Better
from harness.show.json import Shown

LEAST_OF_LEVEL = 3


@dataclass(frozen=True)
class ChangePoint:
    """A change of level; ``index``: of its first value. ``before``, ``after``: the means of both levels."""

    index: int
    before: float
    after: float
    p_value: float

    @property
    def fraction(self) -> float:
        return (self.after - self.before) / self.before


def change_points(values: Sequence[float]) -> tuple[ChangePoint, ...]:
    """Return the steps of ``values``, one per night, as the gate finds them; each level has three nights."""
    places = [place for place in levels(values) if len(place) >= LEAST_OF_LEVEL]
    sides = [(place.start, [values[i] for i in place]) for place in places]
    return tuple(
        ChangePoint(start, fmean(before), fmean(after), welch(before, after).p_value)
        for (_, before), (start, after) in pairwise(sides)
    )


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
    """Return the differences of two nights, software first, everyday ones last, of facts that both recorded."""
    found = differences(setup_of(before), setup_of(after))
    known = [each for each in found if _knows(before, each.name) and _knows(after, each.name)]
    last = ("driver", "device", "container")
    return tuple(sorted(known, key=lambda e: (e.name in EVERYDAY, e.name.startswith("$"), e.name in last, e.name)))


class ChangeRow(Shown):
    """A difference between two nights, in JSON."""

    name: str
    before: str | None
    after: str | None


def change_text(change: Difference | ChangeRow) -> str:
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

LOOK_BACK = 20
"""The level comes from so many nights before the newest."""
_SMALLEST = 0.002


@dataclass(frozen=True)
class Trend:
    """``change`` of the newest night from the ``level`` before it. ``allowed``: what noise explains. Fractions."""

    word: TrendWord
    level: float | None = None
    change: float | None = None
    allowed: float | None = None


def trend(values: Sequence[float], better: Better) -> Trend:
    """Compare the last of ``values`` with the level of up to 20 before it, as the gate does. ValueError without."""
    if not values:
        raise ValueError("no values")
    known = values[-LOOK_BACK - 1 : -1]
    if len(known) < MIN_NIGHTS:
        return Trend("new")
    parts = levels(known)
    level = median(known[parts[-1].start :])
    change = values[-1] / level - 1
    allowed = max(_SMALLEST, DEVIATIONS * spread_around(known, parts))
    return Trend(word_of(change, allowed, better), level, change, allowed)


def word_of(change: float, allowed: float, better: Better) -> TrendWord:
    """Return what a change means for a figure of which ``better`` is welcome."""
    if abs(change) <= allowed:
        return "steady"
    if better == "equal":
        return "other"
    return "better" if (change > 0) == (better == "higher") else "worse"
