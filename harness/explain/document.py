"""JSON of an explanation: everything in the text, and all differences in full."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BeforeValidator

from harness.explain.values import Fit, Group, Key
from harness.showing.json import Document, Shown, Text, at

Names = dict[str, list[str]]


def _by_group(keys: Iterable[Key]) -> Names:
    found: Names = {}
    for group, name in keys:
        found.setdefault(group, []).append(name)
    return found


Unrecorded = Annotated[Names, BeforeValidator(_by_group)]
"""Names by group."""


class SideRow(Shown):
    """The run or golden, and how far to trust it."""

    name: str
    kind: Literal["run", "golden", "published"]
    num_runs: int
    derived: Annotated[tuple[str, ...], BeforeValidator(sorted)]
    caveats: tuple[str, ...]


class ChangeRow(Shown):
    """One metric on both sides."""

    metric: str
    run: float | None = at("ours")
    reference: float | None = at("theirs")
    change: float | None
    noise: float | None
    basis: Text
    is_noise: bool


class DifferenceRow(Shown):
    """One recorded value that differs."""

    group: Group
    name: str
    run: str | None = at("ours")
    reference: str | None = at("theirs")
    source: Text


class MetricFitRow(Shown):
    """Whether a cause can explain the change of one metric."""

    metric: str
    fit: Fit
    text: str
    expected: float | None


class CauseRow(Shown):
    """Differences with the same effect, and the metrics that they can have changed."""

    rank: int
    name: str
    can_explain: bool
    differences: tuple[DifferenceRow, ...] = at("departures")
    says: tuple[MetricFitRow, ...] = at("fits")
    size: str
    why: str


class NotRecorded(Shown):
    """Facts that only the other side, or neither side, recorded."""

    run: Unrecorded = at("unrecorded_ours")
    reference: Unrecorded = at("unrecorded_theirs")
    neither: tuple[Group, ...]


class ExplainDocument(Document):
    """``mbr-perf explain --json``. ``same``: how many facts agree, by group."""

    run: SideRow = at("ours")
    reference: SideRow = at("theirs")
    metrics: tuple[ChangeRow, ...] = at("changes")
    verdict: tuple[str, ...]
    causes: tuple[CauseRow, ...]
    same: dict[Group, int] = at("contrast", "same")
    not_recorded: NotRecorded = at("contrast")
    advice: tuple[str, ...]
    exit_code: int = 0
