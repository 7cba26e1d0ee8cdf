"""The values of an explanation, which are its JSON: sides, changes and causes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, InstanceOf, PlainSerializer, computed_field

from harness.experiment.effective import EffectiveRecompute
from harness.experiment.experiment import ExperimentSpec
from harness.records.golden import Difference, Group
from harness.show.json import Document, Shown, Text, at

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
    "window": "measured steps",
    "place": "host names",
    "formula": "formula version",
}
Key = tuple[Group, str]
Kind = Literal["run", "golden", "published"]
Fit = Literal["all", "part", "possible", "unmeasured", "nothing", "no"]

NONE_SEEN = "none seen"  # checked for and not found
IMAGE = "container"
ABSENT = "none"  # recorded as not set or not installed


class SideRow(Shown):
    """The run or golden, and how far to trust it. ``derived``: metrics that were calculated."""

    name: str
    kind: Kind
    num_runs: int = 1
    derived: Annotated[tuple[str, ...], BeforeValidator(sorted)] = ()
    caveats: tuple[str, ...] = ()


class Side(SideRow):
    """Everything recorded for a run or a golden. ``facts`` are texts; a missing fact was not recorded.

    ``closed``: groups recorded whole, in which a missing fact was absent. ``metrics``: usable values by name, none for
    a run that did not end well. ``spreads``: relative standard deviation of one run, from ``num_runs``. ``numbers``:
    facts as numbers: ``sm_clock_min_mhz``, ``sm_clock_max_mhz``, ``max_power_w``, ``imbalance`` (a fraction).
    """

    metrics: Mapping[str, float]
    facts: Mapping[Key, str]
    closed: frozenset[Group]
    spreads: Mapping[str, float] = {}
    numbers: Mapping[str, float] = {}
    sources: Mapping[str, str] = {}
    spec: InstanceOf[ExperimentSpec] | None = None
    effective: InstanceOf[EffectiveRecompute] | None = None


class NotRecorded(Shown):
    """Facts that only the other side, or neither side, recorded."""

    run: dict[Group, list[str]]
    reference: dict[Group, list[str]]
    neither: tuple[Group, ...]


@dataclass(frozen=True)
class Contrast:
    """Two sides compared. ``same``: how many facts agree, by group."""

    differences: tuple[Difference, ...]
    same: Mapping[Group, int]
    not_recorded: NotRecorded


@dataclass(frozen=True)
class Change:
    """One metric on both sides. ``change``: relative to the reference; None without two values.

    ``noise``: how much equal runs may differ (two standard deviations of the difference), None if unknown;
    ``basis``: its source.
    """

    metric: str
    run: float | None
    reference: float | None
    change: float | None
    noise: float | None = None
    basis: Annotated[str, PlainSerializer(lambda text: text or None, return_type=str | None)] = ""

    @computed_field
    @property
    def is_noise(self) -> bool:
        return self.change is not None and abs(self.change) <= (self.noise or 0)


@dataclass(frozen=True)
class MetricFit:
    """Whether a cause can explain the change of one metric. ``expected``: the relative change that it would make."""

    metric: str
    fit: Fit
    text: str
    expected: float | None = None


class DifferenceRow(Shown):
    """One recorded value that differs. ``source``: where the run's value of a setting comes from."""

    group: Group
    name: str
    run: str | None = at("after")
    reference: str | None = at("before")
    source: Text


class Cause(Shown):
    """Differences with the same effect, and the metrics that they can have changed. ``rank`` counts from 1."""

    rank: int = 0
    name: str
    differences: tuple[DifferenceRow, ...]
    says: tuple[MetricFit, ...]
    size: str

    @computed_field
    @property
    def can_explain(self) -> bool:
        return any(each.fit not in ("nothing", "no") for each in self.says)


class Explanation(Document):
    """``mbr-perf explain --json``. ``verdict``: the summary; ``same``: how many facts agree; ``advice``: next steps."""

    run: SideRow
    reference: SideRow
    metrics: tuple[Change, ...]
    verdict: tuple[str, ...]
    causes: tuple[Cause, ...]
    same: dict[Group, int]
    not_recorded: NotRecorded
    advice: tuple[str, ...]
    exit_code: int = 0
