"""Collectives without data, and the tally of a trace."""

import functools
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.distributed import ProcessGroup, distributed_c10d

from harness.experiment.gpu import PeakKey
from harness.records.trace import CommGroup, OpCost, OpKind, Phase

_PEAKS: dict[torch.dtype, PeakKey] = {torch.bfloat16: "bf16", torch.float16: "bf16", torch.uint8: "fp8"}


def peak_key(dtype: torch.dtype) -> PeakKey:
    """Return the key of `GpuType.peak_flops` whose peak bounds arithmetic in ``dtype``; integers count as fp32."""
    return _PEAKS.get(dtype, "fp32")


def tensor_bytes(tensor: torch.Tensor | None) -> int:
    """Return the bytes that reading ``tensor`` once moves: expanded dimensions count once, None counts 0."""
    if tensor is None:
        return 0
    size = tensor.element_size()
    for extent, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride or not extent:
            size *= extent
    return size


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors among (nested) arguments; quicker than torch's pytree, which looks at every leaf's type."""
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
        """Count ``op``."""
        self._count[op] += 1

    def rows(self) -> tuple[OpCost, ...]:
        """Return all operations. Figures of equal operations are multiplied by their number."""
        figures = ("flops", "bytes", "comm_bytes")
        return tuple(
            OpCost(**vars(op) | {name: getattr(op, name) * count for name in figures}, count=count)
            for op, count in self._count.items()
        )


c10d = torch.ops.c10d

# Share of the whole buffer that a rank of a ring of n sends, over (n - 1) / n.
_WHOLE, _TWICE = 1, 2
_BASES = {
    c10d._allgather_base_: (_WHOLE, "out"),
    c10d._reduce_scatter_base_: (_WHOLE, "in"),
    c10d.alltoall_base_: (_WHOLE, "in"),
    c10d.allreduce_: (_TWICE, "in"),
    c10d.allgather_: (_WHOLE, "out"),
    c10d.reduce_scatter_: (_WHOLE, "in"),
    c10d.broadcast_: (_WHOLE, "in"),
}


_ADDED_KERNELS = torch.library.Library("c10d", "IMPL")  # which leave with it


@dataclass(frozen=True)
class Comm:
    """Bytes one rank sends, over which group, and whether the caller waits later."""

    bytes: int
    group: CommGroup
    overlapped: bool


class UnknownCollectiveError(RuntimeError):
    """megatron-core used a collective whose cost is not in the table."""


def install() -> None:
    """Let meta tensors take the processor's kernels, where torch (2.6) has no collectives of meta tensors."""
    if torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "Meta"):
        return
    for packet in (*_BASES, c10d.barrier, c10d.send, c10d.recv_):
        kernel = functools.partial(packet.default._op_dk, torch._C.DispatchKey.CPU)
        _ADDED_KERNELS.impl(packet.__name__, kernel, "Meta")


def cost_of(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> Comm | None:
    """Return the cost of a c10d call; None for a group of one, barriers, and receiving (the sender counts it)."""
    packet = func._overloadpacket
    if packet in (c10d.barrier, c10d.monitored_barrier_, c10d.recv_):
        return None
    if packet not in _BASES and packet != c10d.send:
        raise UnknownCollectiveError(f"the tracer has no cost for {packet}, which megatron-core calls here")
    names = [argument.name for argument in func._schema.arguments]
    values = dict(zip(names, args, strict=False)) | kwargs
    group = ProcessGroup.unbox(values["process_group"])
    num_ranks = group.size()
    if num_ranks == 1:
        return None
    if packet == c10d.send:  # of `roll_tensor` alone, which goes to the next rank of CP, and waits
        return Comm(sum(map(tensor_bytes, tensors_in(values["tensors"]))), "cp", overlapped=False)
    factor, side = _BASES[packet]
    whole = sum(map(tensor_bytes, tensors_in(_side(values, side))))
    sent = factor * whole * (num_ranks - 1) // num_ranks
    overlapped = bool(values.get("async_op", True)) if _names_the_waiting(func) else caller_goes_on()
    return Comm(sent, _label(group), overlapped)


def _names_the_waiting(func: torch._ops.OpOverload) -> bool:
    """Return whether the operation has an argument for waiting; most do not before torch 2.8."""
    return any(argument.name == "async_op" for argument in func._schema.arguments)


def caller_goes_on() -> bool:
    """Return the argument of the calling torch.distributed function; True for a direct call of the group."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == distributed_c10d.__file__ and "async_op" in frame.f_locals:
            return bool(frame.f_locals["async_op"])
        frame = frame.f_back
    return True


_SIDES = {
    "out": ("output_tensor", "output_tensors", "output"),
    "in": ("input_tensor", "input_tensors", "input", "tensors"),
}


def _side(values: dict[str, object], side: str) -> object:
    return next(values[name] for name in _SIDES[side] if values.get(name) is not None)


def _label(group: ProcessGroup) -> CommGroup:
    """Return the name of a megatron group; of several dimensions, the one that its traffic serves."""
    from megatron.core import parallel_state as state  # not at the top: adaptations come first

    known: tuple[tuple[CommGroup, object], ...] = (
        ("tp", state._TENSOR_MODEL_PARALLEL_GROUP),
        ("ep", state._EXPERT_MODEL_PARALLEL_GROUP),
        ("etp", state._EXPERT_TENSOR_PARALLEL_GROUP),
        ("cp", state._CONTEXT_PARALLEL_GROUP),
        ("ep", state._EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP),
        ("tp", state._TENSOR_AND_CONTEXT_PARALLEL_GROUP),
        ("tp", state._MODEL_PARALLEL_GROUP),
        ("tp", state._TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP),  # maxima of delayed scaling
    )
    for label, candidate in known:
        if candidate is not None and candidate.group_name == group.group_name:
            return label
    raise UnknownCollectiveError(f"process group {group.group_name} is not one of megatron's model-parallel groups")
