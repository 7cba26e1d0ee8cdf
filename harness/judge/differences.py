"""One recorded fact that two measurements do not share, and how it counts for a comparison."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from harness.records.golden import difference_text, differing
from harness.records.metrics import GateKind

Group = Literal[
    "device", "settings", "recompute", "clocks", "processes", "memory", "ranks", "environment", "software", "driver",
    "window", "place", "formula",
]  # fmt: skip
ALL_KINDS: tuple[GateKind, ...] = ("time", "memory", "exact")
TIME_ONLY: tuple[GateKind, ...] = ("time",)


@dataclass(frozen=True)
class Difference:
    """``before``: of the golden, the reference or the earlier night; ``after``: of what is judged; None: not recorded.

    ``name``: a dotted path of the spec, a package, a variable, or a fact about the machine. ``kinds``: the gates that
    it affects; ``blocks`` False: these gates are only left out. ``source``: what set ``after``.
    ``reference``: what ``before`` is of, in messages.
    """

    name: str
    before: Annotated[str | None, Field(serialization_alias="golden")]
    after: Annotated[str | None, Field(serialization_alias="current")]
    kinds: tuple[GateKind, ...] = ALL_KINDS
    blocks: bool = True
    accepted: bool = False
    group: Annotated[Group, Field(exclude=True)] = "settings"
    source: Annotated[str, Field(exclude=True)] = ""
    reference: Annotated[str, Field(exclude=True)] = "golden"

    @property
    def text(self) -> str:
        return difference_text(self.name, self.before, self.after, self.reference)


def differences(
    before: Mapping[str, str | None], after: Mapping[str, str | None], *, blocks: bool = True
) -> tuple[Difference, ...]:
    """Compare two sides fact by fact, in the order of names; a fact that one side lacks is None there."""
    return tuple(Difference(name, *values, blocks=blocks) for name, values in differing(before, after).items())
