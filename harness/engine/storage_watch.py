"""Watches storages: series and limits of memory on a processor."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.engine.tracing.collectives import tensors_in
from harness.engine.tracing.ledger import StorageLedger
from harness.records.rank import MAX_POINTS, MemorySeries
from harness.units import format_bytes


class SeriesRecorder:
    """Maxima of equal intervals; when there are too many, neighbours become one and the interval doubles.

    ``first_interval_s`` is the finest resolution. Readings must come in order of time.
    """

    def __init__(self, first_interval_s: float) -> None:
        self.interval_s = first_interval_s
        self._start_s: float | None = None
        self._level = 0
        self._maxima: list[int] = []

    def add(self, time_s: float, num_bytes: int) -> None:
        """The level is ``num_bytes`` from ``time_s`` on."""
        if self._start_s is None:
            self._start_s = time_s
        while (place := int((time_s - self._start_s) / self.interval_s)) >= MAX_POINTS:
            self._halve()
        while len(self._maxima) <= place:  # nothing happened in between: the level stayed
            self._maxima.append(self._level)
        self._maxima[place] = max(self._maxima[place], num_bytes)
        self._level = num_bytes

    def series(self, what: str) -> MemorySeries | None:
        """What was recorded so far; None without a reading."""
        if not self._maxima:
            return None
        return MemorySeries(what=what, interval_s=self.interval_s, max_bytes=tuple(self._maxima))

    def _halve(self) -> None:
        pairs = range(0, len(self._maxima), 2)
        self._maxima = [max(self._maxima[place : place + 2]) for place in pairs]
        self.interval_s *= 2


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
