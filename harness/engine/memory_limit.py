"""A limit on the memory of one rank: counted operation by operation on a processor, by torch's allocator on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.engine.tracing.ledger import StorageLedger
from harness.engine.tracing.tally import tensors_in
from harness.units import format_bytes

WATCHED_STEPS = 2  # the first makes the optimizer's state, the second is like all later ones


class MemoryLimitError(MemoryError):
    """A rank asked for more than its limit leaves; the text is worded as torch's own."""


class CpuLimit:
    """Holds a rank on a processor to ``limit_bytes``: what lives between steps plus what a step allocates.

    Steps :data:`WATCHED_STEPS` and later run unwatched, at full speed: they need what the last watched one needed.
    Whole storages count, once each, as in the meter's figure; what a kernel allocates inside itself is not seen.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.peak_bytes: int | None = None

    def hold(self, num_bytes: int) -> None:
        """What was built must fit. MemoryLimitError."""
        if num_bytes > self.limit_bytes:
            raise MemoryLimitError(_refusal(num_bytes, in_use=0, limit=self.limit_bytes, where="weights and gradients"))
        self.peak_bytes = max(self.peak_bytes or 0, num_bytes)

    @contextmanager
    def step(self, static_bytes: int) -> Iterator[None]:
        """Watch one step that begins with ``static_bytes`` in use. MemoryLimitError at the operation that goes too far."""
        watch = _Watch(static_bytes, self.limit_bytes)
        try:
            with watch:
                yield
        finally:
            self.peak_bytes = max(self.peak_bytes or 0, static_bytes + watch.peak_bytes)


class _Watch(TorchDispatchMode):
    """Sees every operation of a step; ``peak_bytes`` is the most that fitted, without the request that did not."""

    def __init__(self, static_bytes: int, limit_bytes: int) -> None:
        super().__init__()
        self._static, self._limit = static_bytes, limit_bytes
        self._ledger = StorageLedger()
        self._resize = torch.UntypedStorage.resize_
        self.peak_bytes = 0

    def __enter__(self):
        torch.UntypedStorage.resize_ = self._resizing()
        return super().__enter__()

    def __exit__(self, *exc_info):
        torch.UntypedStorage.resize_ = self._resize
        return super().__exit__(*exc_info)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run ``func`` and count the storages that it made or resized."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.is_view:
            return out
        produced = [tensor.untyped_storage() for tensor in tensors_in(out)]
        if produced:
            before = self._ledger.live_bytes
            given = {tensor.untyped_storage()._cdata for tensor in tensors_in((args, kwargs))}
            for storage in produced:
                if storage._cdata in given:  # in place, or a view: memory that somebody else made
                    self._ledger.resized(storage)
                else:
                    self._ledger.add_storage(storage)
            self._judge(before, str(func))
        return out

    def _resizing(self):
        """Output-discarding checkpoints empty and refill storages under living tensors, without an operation."""
        watch, resize = self, self._resize

        def resize_(storage, size):
            before = watch._ledger.live_bytes
            resize(storage, size)
            watch._ledger.resized(storage)
            watch._judge(before, "UntypedStorage.resize_")

        return resize_

    def _judge(self, before: int, where: str) -> None:
        live = self._ledger.live_bytes
        if self._static + live > self._limit:
            raise MemoryLimitError(_refusal(live - before, self._static + before, self._limit, where))
        self.peak_bytes = max(self.peak_bytes, live)


def _refusal(request: int, in_use: int, limit: int, where: str) -> str:
    return (
        f"out of memory under --memory_limit. Tried to allocate {request} bytes ({format_bytes(request)}) in {where}; "
        f"{format_bytes(in_use)} of the limit of {format_bytes(limit)} are in use"
    )


def limit_cuda(limit_bytes: int, device: torch.device) -> None:
    """Hold torch's caching allocator of this process to ``limit_bytes`` of reserved memory; it raises as it always does."""
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total), device)
