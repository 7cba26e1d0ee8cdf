"""One dispatch mode that sees every operation: allocations go to the ledger, costs to the tally."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from math import prod

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from harness.engine.tracing import collectives
from harness.engine.tracing.collectives import Op, Tally, peak_key, tensor_bytes, tensors_in
from harness.engine.tracing.ledger import StorageLedger
from harness.experiment.gpu import PeakKey
from harness.records.trace import CommGroup, OpKind, Phase

aten = torch.ops.aten


def attention_flops(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool) -> int:
    """Two products over the scores, ``2 b a s s_k (d_k + d_v)``; half of it under a causal mask.

    Takes [b, a, s, d] as torch's kernels do; heads of key and value may be fewer (grouped queries).
    """
    batch, heads, length, _ = query.shape
    flops = 2 * batch * heads * length * key.shape[2] * (key.shape[3] + value.shape[3])
    return flops // 2 if causal else flops


# Kernels by packet: where the causal flag stands among the arguments, and how many products they do for the forward's
# two. Backward kernels recompute the scores: five; their arguments begin with the output's gradient.
_KERNELS = {
    aten._scaled_dot_product_flash_attention: (4, 2),
    aten._scaled_dot_product_flash_attention_backward: (11, 5),
    aten._scaled_dot_product_flash_attention_for_cpu: (4, 2),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (7, 5),
    aten._scaled_dot_product_efficient_attention: (6, 2),
    aten._scaled_dot_product_efficient_attention_backward: (11, 5),
}


def _attention(packet: object, args: tuple) -> int:
    causal_place, products = _KERNELS[packet]
    tensors = args[:3] if products == 2 else args[1:4]
    causal = len(args) > causal_place and bool(args[causal_place])
    return attention_flops(*tensors, causal=causal) * products // 2


def classify(packet: object, args: tuple, kwargs: dict, out: object) -> tuple[OpKind, int]:
    """Return the kind of operation of an aten packet, and its FLOPs (multiply and add are two)."""
    if packet in _KERNELS:
        return "attention", _attention(packet, args)
    formula = flop_registry.get(packet)
    if formula is None:
        return "elementwise", 0
    return "gemm", int(formula(*args, **kwargs, out_val=out))


def gemm_flops(*sizes: int) -> int:
    """``2 m n k``."""
    return 2 * prod(sizes)


# torch.compile writes neither into its inputs but at the very end, nor fuses a scatter: it works on a copy.
_SCATTERS = (aten.index_put_, aten.index_put)

# Operations that move no data: they allocate, or give an existing storage another shape.
_FREE = {
    aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided, aten.detach, aten.alias,
    aten.lift_fresh, aten._unsafe_view, aten.resize_, aten.set_, aten.record_stream,
}  # fmt: skip


def _has_fresh_outputs(func) -> bool:
    """Return whether an operation returns nothing but new tensors, whose shapes follow from its arguments."""
    schema = func._schema
    if (
        func.namespace != "aten"
        or func._overloadpacket is aten._unsafe_view
        or any(argument.alias_info for argument in (*schema.arguments, *schema.returns))
    ):
        return False
    return all(str(result.type) == "Tensor" for result in schema.returns)


class _UnknownArgumentError(Exception):
    """An argument on which more than shapes depends."""


def _shape_key(value: object) -> object:
    """Equal for arguments that lead to outputs of the same shapes."""
    if isinstance(value, torch.Tensor):
        if not value.is_meta or type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise _UnknownArgumentError
        return value.dtype, value.shape, value.stride()
    if isinstance(value, list | tuple):
        return tuple(map(_shape_key, value))
    return type(value), value


class _Shapes:
    """Runs operations on tensors without data, each once: torch takes a millisecond to derive its shapes."""

    def __init__(self) -> None:
        self._fresh: dict[object, bool] = {}
        self._made: dict[object, tuple] = {}

    def run(self, func, args: tuple, kwargs: dict):
        """The result of ``func``, or empty tensors like those that it returned for arguments of these shapes."""
        fresh = self._fresh.get(func)
        if fresh is None:
            fresh = self._fresh[func] = _has_fresh_outputs(func)
        if not fresh:
            return func(*args, **kwargs)
        try:
            key = func, _shape_key(args), tuple((name, _shape_key(value)) for name, value in kwargs.items())
            made = self._made.get(key)
        except (_UnknownArgumentError, TypeError):  # TypeError: not hashable
            return func(*args, **kwargs)
        if made is None:
            out = func(*args, **kwargs)
            results = out if isinstance(out, tuple) else (out,)
            if all(type(each) is torch.Tensor and each.is_meta for each in results):
                self._made[key] = isinstance(out, tuple), [(each.shape, each.stride(), each.dtype) for each in results]
            return out
        is_tuple, shapes = made
        results = [torch.empty_strided(size, stride, dtype=dtype, device="meta") for size, stride, dtype in shapes]
        return tuple(results) if is_tuple else results[0]


_SHAPES = _Shapes()


class _Recording:
    tracer: "Tracer | None" = None


def active() -> "Tracer | None":
    """Return the tracer that is recording now, or None."""
    return _Recording.tracer


class Tracer(TorchDispatchMode):
    """Records what runs inside it. ``fuses``: functions that megatron hands to torch.compile count as one kernel.

    Only tensors on ``device_type`` count: generator states and split sizes of a meta trace live on the host.
    """

    def __init__(self, ledger: StorageLedger, device_type: str, *, fuses: bool) -> None:
        super().__init__()
        self.ledger, self.device_type, self.fuses = ledger, device_type, fuses
        self.tally = Tally()
        self.phase: Phase = "forward"
        self._region: list[weakref.ref] | None = None
        self._copied_bytes = 0

    def __enter__(self):
        _Recording.tracer = self
        return super().__enter__()

    def __exit__(self, *exc_info):
        _Recording.tracer = None
        return super().__exit__(*exc_info)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run ``func`` and record it."""
        kwargs = kwargs or {}
        out = _SHAPES.run(func, args, kwargs)
        produced = [t for t in tensors_in(out) if t.device.type == self.device_type]
        if self._region is not None:
            self._region.extend(weakref.ref(t.untyped_storage()) for t in produced)
            if func._overloadpacket in _SCATTERS and self.ledger.knows(args[0].untyped_storage()):
                self._copied_bytes += args[0].untyped_storage().nbytes()
            return out
        for tensor in produced:
            self.ledger.add(tensor)
        if func.namespace == "c10d":
            self._record_collective(func, args, kwargs)
        elif func.namespace == "aten" and not func.is_view and func._overloadpacket not in _FREE and produced:
            self._record(func._overloadpacket, args, kwargs, out, produced)
        return out

    @contextmanager
    def recomputing(self) -> Iterator[None]:
        """Mark operations inside the block as the repetition of a forward pass."""
        before, self.phase = self.phase, "recompute"
        try:
            yield
        finally:
            self.phase = before

    def kernel(self, kind: OpKind, dtype: PeakKey, *, flops: int = 0, num_bytes: int = 0) -> None:
        """Record a kernel that runs outside of aten."""
        self.tally.add(Op(self.phase, kind, dtype, flops=flops, bytes=num_bytes))

    def send(self, num_bytes: int, group: CommGroup, *, overlapped: bool) -> None:
        """Record ``num_bytes`` sent by this rank."""
        self.tally.add(Op(self.phase, "comm", "bf16", comm_bytes=num_bytes, comm_group=group, overlapped=overlapped))

    @contextmanager
    def one_kernel(self, inputs: object, kind: OpKind = "elementwise", flops: int = 0) -> Iterator[None]:
        """Record the block as one kernel: only tensors that outlive the block reach memory."""
        if self._region is not None:
            yield
            return
        self._region, self._copied_bytes = [], 0
        try:
            yield
        finally:
            produced, self._region = self._region, None
            self._close_region(inputs, produced, kind, flops)

    def _close_region(self, inputs: object, produced: list[weakref.ref], kind: OpKind, flops: int) -> None:
        read = list(tensors_in(inputs))
        written = 0
        for reference in produced:
            storage = reference()
            if storage is not None and not self.ledger.knows(storage):
                written += storage.nbytes()
                self.ledger.add_storage(storage)
        self.ledger.pass_through(self._copied_bytes)
        dtype = peak_key(read[0].dtype) if read else "bf16"
        self.kernel(kind, dtype, flops=flops, num_bytes=sum(map(tensor_bytes, read)) + written)

    def _record(self, packet, args, kwargs, out, produced) -> None:
        kind, flops = classify(packet, args, kwargs, out)
        read = list(tensors_in((args, kwargs)))
        num_bytes = sum(map(tensor_bytes, read)) + sum(map(tensor_bytes, produced))
        self.kernel(kind, peak_key((read or produced)[0].dtype), flops=flops, num_bytes=num_bytes)

    def _record_collective(self, func, args, kwargs) -> None:
        comm = collectives.cost_of(func, args, kwargs)
        if comm is not None:
            self.send(comm.bytes, comm.group, overlapped=comm.overlapped)


def fusible(function: Callable) -> Callable:
    """Replace `torch.compile` in megatron's `jit_fuser`: one kernel if the active tracer fuses, else eager."""

    @wraps(function)
    def call(*args, **kwargs):
        tracer = active()
        if tracer is None or not tracer.fuses:
            return function(*args, **kwargs)
        with tracer.one_kernel((args, kwargs)):
            return function(*args, **kwargs)

    return call
