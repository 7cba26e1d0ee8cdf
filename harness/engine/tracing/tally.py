"""Operations of a trace, added up: equal ones become one row."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from harness.records.trace import CommGroup, OpCost, OpKind, Phase
from harness.spec.precision import PeakKey

_PEAKS: dict[torch.dtype, PeakKey] = {torch.bfloat16: "bf16", torch.float16: "bf16", torch.uint8: "fp8"}


def peak_key(dtype: torch.dtype) -> PeakKey:
    """The peak of `GpuType.peak_flops` that bounds arithmetic in ``dtype``; integers go with fp32."""
    return _PEAKS.get(dtype, "fp32")


def tensor_bytes(tensor: torch.Tensor | None) -> int:
    """Bytes that reading ``tensor`` once moves: expanded dimensions count once, None is nothing."""
    if tensor is None:
        return 0
    size = tensor.element_size()
    for extent, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride or not extent:
            size *= extent
    return size


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """The tensors among (nested) arguments; quicker than torch's pytree, which looks at every leaf's type."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(tuple(value.values()))


@dataclass(frozen=True)
class Op:
    """One operation; fields as in `OpCost`."""

    phase: Phase
    kind: OpKind
    dtype: PeakKey
    flops: int = 0
    bytes: int = 0
    comm_bytes: int = 0
    comm_group: CommGroup | None = None
    overlapped: bool = False


class Tally:
    """Counts operations by value."""

    def __init__(self) -> None:
        self._count: Counter[Op] = Counter()

    def add(self, op: Op) -> None:
        """One more ``op``."""
        self._count[op] += 1

    def rows(self) -> tuple[OpCost, ...]:
        """All operations; figures of equal ones are multiplied by their number."""
        return tuple(
            OpCost(
                phase=op.phase,
                kind=op.kind,
                dtype=op.dtype,
                flops=op.flops * count,
                bytes=op.bytes * count,
                comm_bytes=op.comm_bytes * count,
                comm_group=op.comm_group,
                overlapped=op.overlapped,
                count=count,
            )
            for op, count in self._count.items()
        )
