"""What an explanation is made of."""

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

NONE_SEEN = "none seen"  # looked for, and not there
IMAGE = "container"
ABSENT = "none"  # recorded, and not set or not installed


@dataclass(frozen=True)
class Side:
    """All that is recorded of a run or a golden. ``facts`` are texts; one that is missing was not recorded.

    ``closed``: groups that are recorded whole, where what is missing was not there. ``metrics``: usable figures by name,
    none of a run that ended badly; ``derived``: those that are worked out from others. ``spreads``: relative standard
    deviation of one run, over ``num_runs`` or as ``spread_basis`` says. ``numbers``: facts for arithmetic: ``sm_clock_min_mhz``, ``sm_clock_max_mhz``, ``imbalance``,
    ``spread_of_steps`` (fractions).
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
    """One recorded thing that is not the same. ``theirs`` (or ``ours``) None: that side did not record it.

    ``source``: where our value comes from, for a setting.
    """

    group: Group
    name: str
    ours: str | None
    theirs: str | None
    source: str = ""


@dataclass(frozen=True)
class Contrast:
    """Two sides laid side by side. ``same``: how many facts agree, by group; ``unrecorded_*``: what only one side has."""

    departures: tuple[Departure, ...]
    same: Mapping[Group, int]
    unrecorded_ours: tuple[Key, ...]
    unrecorded_theirs: tuple[Key, ...]
    neither: tuple[Group, ...]


@dataclass(frozen=True)
class Change:
    """One metric on both sides. ``change`` is (ours - theirs) / theirs, None without two figures.

    ``noise``: what equal runs may differ by (two standard deviations of such a difference), ``basis`` where that is
    known from; None where it is not.
    """

    metric: str
    ours: float | None
    theirs: float | None
    change: float | None
    noise: float | None = None
    basis: str = ""

    @property
    def is_noise(self) -> bool:
        """Whether equal runs would differ by as much."""
        return self.change is not None and abs(self.change) <= (self.noise or 0)


@dataclass(frozen=True)
class Says:
    """What a cause has to say about the change of one metric. ``expected``: the relative change it would make."""

    metric: str
    fit: Fit
    text: str
    expected: float | None = None


@dataclass(frozen=True)
class Cause:
    """Departures that act alike, and what they can have moved. ``rank`` counts from 1."""

    rank: int
    name: str
    departures: tuple[Departure, ...]
    says: tuple[Says, ...]
    size: str
    why: str

    @property
    def can_explain(self) -> bool:
        """Whether it can have moved anything that did move."""
        return any(one.fit in ("all", "part", "direction", "possible", "unmeasured") for one in self.says)


@dataclass(frozen=True)
class Explanation:
    """Why a run is not like what it is held against. ``verdict``: the first thing to know; ``advice``: what to do next."""

    ours: Side
    theirs: Side
    changes: tuple[Change, ...]
    contrast: Contrast
    causes: tuple[Cause, ...]
    verdict: tuple[str, ...]
    advice: tuple[str, ...]
