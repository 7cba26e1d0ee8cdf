"""Operations as a linear quantity: what a layer executes can be added, subtracted and multiplied."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from harness.records.trace import OpCost


@dataclass(frozen=True)
class Work:
    """How often each operation runs; the key is one execution (``count`` 1). Differences may hold negative counts."""

    counts: Counter[OpCost] = field(default_factory=Counter)

    @staticmethod
    def of(ops: Iterable[OpCost]) -> "Work":
        """The rows of a trace, whose figures are totals over ``count`` executions."""
        counts: Counter[OpCost] = Counter()
        for op in ops:
            each = {name: getattr(op, name) // op.count for name in ("flops", "bytes", "comm_bytes")}
            counts[op.model_copy(update=each | {"count": 1})] += op.count
        return Work(counts)

    def __add__(self, other: "Work") -> "Work":
        return self._plus(other, 1)

    def __sub__(self, other: "Work") -> "Work":
        return self._plus(other, -1)

    def _plus(self, other: "Work", sign: int) -> "Work":
        counts = Counter(self.counts)
        for op, count in other.counts.items():
            counts[op] += sign * count
        return replace(self, counts=Counter({op: count for op, count in counts.items() if count}))

    def __iter__(self) -> Iterator[tuple[OpCost, int]]:
        return iter(self.counts.items())

    def flops(self, *phases: str) -> int:
        """FLOPs in the named phases; in all of them without a name."""
        return sum(op.flops * count for op, count in self if not phases or op.phase in phases)
