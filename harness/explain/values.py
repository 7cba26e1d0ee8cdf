"""The values of an explanation, which are its JSON: sides, changes and causes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, InstanceOf, computed_field

from harness.experiment.experiment import ExperimentSpec
from harness.records.golden import Group
from harness.show.json import Document, Shown, Text, at

Key = tuple[Group, str]
Kind = Literal["run", "golden", "published"]

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
    """All that a run or a golden recorded, as texts. ``closed``: groups in which a missing fact was absent."""

    metrics: Mapping[str, float]
    facts: Mapping[Key, str]
    closed: frozenset[Group]
    spreads: Mapping[str, float] = {}
    sources: Mapping[str, str] = {}
    spec: InstanceOf[ExperimentSpec] | None = None


@dataclass(frozen=True)
class Change:
    """One metric. ``change``: relative to the reference. ``noise``: two standard deviations. None: unknown."""

    metric: str
    run: float | None
    reference: float | None
    change: float | None
    noise: float | None = None

    @computed_field
    @property
    def is_noise(self) -> bool:
        return self.change is not None and abs(self.change) <= (self.noise or 0)


class DifferenceRow(Shown):
    """One recorded value that differs. ``source``: where the run's value of a setting comes from."""

    group: Group
    name: str
    run: str | None = at("after")
    reference: str | None = at("before")
    source: Text


class Cause(Shown):
    """Differences with the same effect. ``explains``: the changed metrics that they can move. ``rank`` is from 1."""

    rank: int = 0
    name: str
    differences: tuple[DifferenceRow, ...]
    explains: tuple[str, ...]
    size: str

    @computed_field
    @property
    def can_explain(self) -> bool:
        return bool(self.explains)


class Explanation(Document):
    """``mbr-perf explain --json``. Facts that one side recorded are ``num_one_sided``."""

    run: SideRow
    reference: SideRow
    metrics: tuple[Change, ...]
    verdict: tuple[str, ...]
    causes: tuple[Cause, ...]
    num_compared: int
    num_one_sided: int
    advice: tuple[str, ...]
    exit_code: int = 0
