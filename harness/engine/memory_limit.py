"""A limit on the memory of one rank: counted operation by operation on a processor, by torch's allocator on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from harness.engine.tracing.ledger import StorageLedger, StorageWatch
from harness.units import format_bytes

WATCHED_STEPS = 2  # the first makes the optimizer's state, the second is like all later ones


class MemoryLimitError(MemoryError):
    """A rank asked for more memory than its limit allows. The text follows torch's."""


class CpuLimit:
    """Limits a rank on the CPU to ``limit_bytes``: model and optimizer plus what steps allocate.

    Later steps run unwatched, at full speed: they need as much as the last of the :data:`WATCHED_STEPS` first steps.
    It counts what :class:`StorageWatch` counts, as the meter does.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.peak_bytes: int | None = None

    def hold(self, num_bytes: int) -> None:
        """Check that model and optimizer fit. MemoryLimitError."""
        if num_bytes > self.limit_bytes:
            raise MemoryLimitError(_refusal(num_bytes, in_use=0, limit=self.limit_bytes, where="weights and gradients"))
        self.peak_bytes = max(self.peak_bytes or 0, num_bytes)

    @contextmanager
    def step(self, built_bytes: int, ledger: StorageLedger | None = None) -> Iterator[None]:
        """Watch one step on top of ``built_bytes`` and of what earlier steps left in ``ledger``.

        MemoryLimitError at the operation that exceeds the limit.
        """
        watch = _Watch(built_bytes, self.limit_bytes, ledger)
        try:
            with watch:
                yield
        finally:
            self.peak_bytes = max(self.peak_bytes or 0, built_bytes + watch.peak_bytes)


class _Watch(StorageWatch):
    """Stops a step at the operation that exceeds the limit. ``peak_bytes`` is the peak before that operation."""

    def __init__(self, built_bytes: int, limit_bytes: int, ledger: StorageLedger | None) -> None:
        super().__init__(ledger)
        self._built, self._limit = built_bytes, limit_bytes

    def grown(self, before: int, where: str) -> None:
        """Raise MemoryLimitError if built and allocated bytes together exceed the limit."""
        live = self.ledger.live_bytes
        if self._built + live > self._limit:
            raise MemoryLimitError(_refusal(live - before, self._built + before, self._limit, where))
        super().grown(before, where)


def _refusal(request: int, in_use: int, limit: int, where: str) -> str:
    return (
        f"out of memory under --memory_limit. Tried to allocate {request} bytes ({format_bytes(request)}) in {where}; "
        f"{format_bytes(in_use)} of the limit of {format_bytes(limit)} are in use"
    )


def limit_cuda(limit_bytes: int, device: torch.device) -> None:
    """Limit the reserved memory of torch's caching allocator to ``limit_bytes``; it then raises its usual error."""
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total), device)
