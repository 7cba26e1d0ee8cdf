"""The storages that a step on a processor makes, counted operation by operation."""

import time
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.engine.memory_series import SeriesRecorder
from harness.engine.tracing.collectives import tensors_in
from harness.engine.tracing.ledger import StorageLedger


class StorageWatch(TorchDispatchMode):
    """Sees every operation inside it.

    ``peak_bytes``: most bytes alive at once of the storages made since it began, and of those in ``ledger``, which an
    earlier watch has seen made.

    Whole storages count, once each, until the last tensor lets go of them, on whichever thread. What a kernel allocates
    inside itself is not seen, nor are the buffers of gloo, which clones gradient buffers to reduce them: NCCL's lie
    outside of torch's allocator too.
    """

    def __init__(self, ledger: StorageLedger | None = None) -> None:
        super().__init__()
        self.ledger = StorageLedger() if ledger is None else ledger
        self._resize: Callable = torch.UntypedStorage.resize_
        self.peak_bytes = self.ledger.live_bytes

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
        fresh = func is torch.ops.aten.lift_fresh.default  # the first that is seen of torch.tensor(...)
        if func.is_view and not fresh:
            return out
        produced = [tensor.untyped_storage() for tensor in tensors_in(out)]
        if produced:
            before = self.ledger.live_bytes
            given = {tensor.untyped_storage()._cdata for tensor in tensors_in((args, kwargs))}
            for storage in produced:
                if storage._cdata in given and not fresh:  # in place, or a view: memory that somebody else made
                    self.ledger.resized(storage)
                else:
                    self.ledger.add_storage(storage)
            self.grown(before, str(func))
        return out

    def _resizing(self) -> Callable:
        """Output-discarding checkpoints empty and refill storages under living tensors, without an operation."""
        watch, resize = self, self._resize

        def resize_(storage, size):
            before = watch.ledger.live_bytes
            resize(storage, size)
            watch.ledger.resized(storage)
            watch.grown(before, "UntypedStorage.resize_")

        return resize_

    def grown(self, before: int, where: str) -> None:  # noqa: ARG002 (for those who judge)
        """After an operation named ``where``, ``before`` which so many bytes were alive; may raise."""
        self.peak_bytes = max(self.peak_bytes, self.ledger.live_bytes)


class _TimedWatch(StorageWatch):
    """Writes down when how much was alive, beside ``base_bytes`` that were there before."""

    def __init__(self, series: SeriesRecorder, base_bytes: int, ledger: StorageLedger | None) -> None:
        super().__init__(ledger)
        self._series, self._base = series, base_bytes

    def grown(self, before: int, where: str) -> None:
        """One point of the series."""
        super().grown(before, where)
        self._series.add(time.perf_counter(), self._base + self.ledger.live_bytes)


def watched_peak_bytes(
    run_step: Callable[[], object],
    series: SeriesRecorder | None = None,
    base_bytes: int = 0,
    ledger: StorageLedger | None = None,
) -> int:
    """Most bytes alive at once of those that ``run_step()`` allocates in tensors, and of those in ``ledger``.

    ``series`` receives what was alive when, ``base_bytes`` included.
    """
    watch = StorageWatch(ledger) if series is None else _TimedWatch(series, base_bytes, ledger)
    with watch:
        run_step()
    return watch.peak_bytes
