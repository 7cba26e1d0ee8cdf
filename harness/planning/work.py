"""Operations as a linear quantity: what a layer executes can be added, subtracted and multiplied."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.records.trace import CommGroup, OpCost, OpKind, Phase
from harness.spec.precision import PeakKey


class Op(NamedTuple):
    """One execution of an operation of a trace; see `OpCost`. A plain tuple: compositions look millions of them up."""

    phase: Phase
    kind: OpKind
    dtype: PeakKey
    flops: int
    bytes: int
    comm_bytes: int
    comm_group: CommGroup | None
    overlapped: bool


@dataclass(frozen=True)
class Work:
    """How often each operation runs. Differences may hold negative counts."""

    counts: Mapping[Op, int] = field(default_factory=dict)

    @staticmethod
    def of(ops: tuple[OpCost, ...]) -> "Work":
        """The rows of a trace, whose figures are totals over ``count`` executions."""
        counts: dict[Op, int] = {}
        for op in ops:
            n = op.count
            each = Op(op.phase, op.kind, op.dtype, op.flops // n, op.bytes // n, op.comm_bytes // n, op.comm_group,
                      op.overlapped)  # fmt: skip
            counts[each] = counts.get(each, 0) + n
        return Work(counts)

    def __add__(self, other: "Work") -> "Work":
        return self._plus(other, 1)

    def __sub__(self, other: "Work") -> "Work":
        return self._plus(other, -1)

    def _plus(self, other: "Work", sign: int) -> "Work":
        counts = dict(self.counts)
        for op, count in other.counts.items():
            total = counts.get(op, 0) + sign * count
            if total:
                counts[op] = total
            else:
                counts.pop(op, None)
        return Work(counts)

    def __iter__(self) -> Iterator[tuple[Op, int]]:
        return iter(self.counts.items())

    def flops(self, *phases: str) -> int:
        """FLOPs in the named phases; in all of them without a name."""
        return sum(op.flops * count for op, count in self if not phases or op.phase in phases)
