"""The values of an explanation: sides, departures, changes and causes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from harness.experiment.effective import EffectiveRecompute
from harness.experiment.experiment import ExperimentSpec

Group = Literal[
    "device", "settings", "recompute", "clocks", "processes", "memory", "ranks", "environment", "software", "driver",
    "window", "place", "formula", "harness",
]  # fmt: skip
GROUPS: Mapping[Group, str] = {
    "device": "device",
    "settings": "settings",
    "recompute": "recompute in effect",
    "clocks": "clocks and power",
    "processes": "other processes",
    "memory": "memory per rank",
    "ranks": "rank imbalance",
    "environment": "environment variables",
    "software": "software versions",
    "driver": "driver",
    "window": "window and steps",
    "place": "hosts",
    "formula": "formula version",
    "harness": "harness and command",
}
Key = tuple[Group, str]
Fit = Literal["all", "part", "direction", "possible", "unmeasured", "nothing", "no"]

NONE_SEEN = "none seen"  # checked for and not found
IMAGE = "container"
ABSENT = "none"  # recorded as not set or not installed


@dataclass(frozen=True)
class Side:
    """Everything recorded for a run or a golden. ``facts`` are texts; a missing fact was not recorded.

    ``closed``: groups recorded whole, in which a missing fact was absent. ``metrics``: usable values by name, none for a
    run that did not end well; ``derived``: the calculated ones. ``spreads``: relative standard deviation of one run, from
    ``num_runs`` or the source in ``spread_basis``. ``numbers``: facts for estimates: ``sm_clock_min_mhz``,
    ``sm_clock_max_mhz``, ``imbalance``, ``spread_of_steps`` (fractions).
    """

    name: str
    kind: Literal["run", "golden", "published"]
    metrics: Mapping[str, float]
    facts: Mapping[Key, str]
    closed: frozenset[Group]
    num_runs: int = 1
    spreads: Mapping[str, float] = field(default_factory=dict)
    spread_basis: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    spec: ExperimentSpec | None = None
    effective: EffectiveRecompute | None = None
    derived: frozenset[str] = frozenset()
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True)
class Departure:
    """One recorded value that differs. ``theirs`` (or ``ours``) None: that side did not record it.

    ``source``: where our value of a setting comes from.
    """

    group: Group
    name: str
    ours: str | None
    theirs: str | None
    source: str = ""


@dataclass(frozen=True)
class Contrast:
    """Two sides compared. ``same``: how many facts agree, by group; ``unrecorded_*``: facts of one side only."""

    departures: tuple[Departure, ...]
    same: Mapping[Group, int]
    unrecorded_ours: tuple[Key, ...]
    unrecorded_theirs: tuple[Key, ...]
    neither: tuple[Group, ...]


@dataclass(frozen=True)
class Change:
    """One metric on both sides. ``change`` is (ours - theirs) / theirs, None without two values.

    ``noise``: how much equal runs may differ (two standard deviations of the difference), None if unknown; ``basis``: its
    source.
    """

    metric: str
    ours: float | None
    theirs: float | None
    change: float | None
    noise: float | None = None
    basis: str = ""

    @property
    def is_noise(self) -> bool:
        """Return whether equal runs may differ by as much."""
        return self.change is not None and abs(self.change) <= (self.noise or 0)


@dataclass(frozen=True)
class MetricFit:
    """Whether a cause can explain the change of one metric. ``expected``: the relative change that it would make."""

    metric: str
    fit: Fit
    text: str
    expected: float | None = None


@dataclass(frozen=True)
class Cause:
    """Departures with the same effect, and the metrics that they can have changed. ``rank`` counts from 1."""

    rank: int
    name: str
    departures: tuple[Departure, ...]
    fits: tuple[MetricFit, ...]
    size: str
    why: str

    @property
    def can_explain(self) -> bool:
        """Return whether it can explain the change of any metric."""
        return any(each.fit in ("all", "part", "direction", "possible", "unmeasured") for each in self.fits)


@dataclass(frozen=True)
class Explanation:
    """Why a run differs from its reference. ``verdict``: the summary; ``advice``: what to do next."""

    ours: Side
    theirs: Side
    changes: tuple[Change, ...]
    contrast: Contrast
    causes: tuple[Cause, ...]
    verdict: tuple[str, ...]
    advice: tuple[str, ...]
