"""A limit on the memory of one rank: counted operation by operation on a processor, by torch's allocator on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from harness.engine.tracing.ledger import StorageLedger, StorageWatch
from harness.units import format_bytes

WATCHED_STEPS = 2  # the first makes the optimizer's state, the second is like all later ones


class MemoryLimitError(MemoryError):
    """A rank asked for more than its limit leaves; the text is worded as torch's own."""


class CpuLimit:
    """Holds a rank on a processor to ``limit_bytes``: what was built plus what steps allocate.

    Steps :data:`WATCHED_STEPS` and later run unwatched, at full speed: they need what the last watched one needed.
    What counts is what :class:`StorageWatch` counts, as in the meter's figure.
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
    def step(self, built_bytes: int, ledger: StorageLedger | None = None) -> Iterator[None]:
        """Watch one step beside ``built_bytes`` and what ``ledger`` holds of earlier ones.

        MemoryLimitError at the operation that goes too far.
        """
        watch = _Watch(built_bytes, self.limit_bytes, ledger)
        try:
            with watch:
                yield
        finally:
            self.peak_bytes = max(self.peak_bytes or 0, built_bytes + watch.peak_bytes)


class _Watch(StorageWatch):
    """Stops a step at the operation that goes too far; ``peak_bytes`` is the most that fitted, without that request."""

    def __init__(self, built_bytes: int, limit_bytes: int, ledger: StorageLedger | None) -> None:
        super().__init__(ledger)
        self._built, self._limit = built_bytes, limit_bytes

    def grown(self, before: int, where: str) -> None:
        """MemoryLimitError where what was built and what steps made is more than the limit."""
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
    """Hold torch's caching allocator of this process to ``limit_bytes`` of reserved memory; it raises as it always does."""
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total), device)
