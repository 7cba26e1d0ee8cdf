"""Counts live and peak bytes by storage, for every operation that a watch sees. Views share one storage."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.engine.tracing.collectives import tensors_in


@dataclass
class _Entry:
    reference: weakref.ref
    num_bytes: int
    epoch: int
    names: torch.UntypedStorage | None = None  # whose bytes it has and keeps alive


class StorageLedger:
    """Counts each storage once, from the first tensor seen on it until it is freed or resized.

    It counts storages, never tensors: a view keeps all of its storage alive. ``live_bytes`` and ``peak_bytes`` are of
    storages made since the last :meth:`new_epoch`: what an earlier pass left never counts as freed by a later one.
    """

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._live = [0]
        self.peak_bytes = 0

    @property
    def live_bytes(self) -> int:
        return self._live[-1]

    def live_of(self, epoch: int) -> int:
        """Return the live bytes of an earlier epoch, counted from 0."""
        return self._live[epoch]

    def new_epoch(self) -> None:
        """Count from zero; live storages stay known."""
        self._live.append(0)
        self.peak_bytes = 0

    def mark(self) -> int:
        """Forget the peak so far; return the live bytes."""
        self.peak_bytes = self.live_bytes
        return self.live_bytes

    def add(self, tensor: torch.Tensor) -> None:
        """Count the storage of ``tensor`` if it is new, or its new size."""
        self.add_storage(tensor.untyped_storage())

    def add_storage(self, storage: torch.UntypedStorage) -> None:
        """As :meth:`add`."""
        key = storage._cdata
        entry = self._entries.get(key)
        if entry is None:
            reference = weakref.ref(storage, lambda _ref: self._remove(key))
            entry = self._entries[key] = _Entry(reference, 0, len(self._live) - 1)
        self._resize(entry, storage.nbytes())

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Note a storage's new size; ignore unknown storages."""
        entry = self._entries.get(storage._cdata)
        if entry is not None:
            self._resize(entry, storage.nbytes())

    def share(self, storage: torch.UntypedStorage, owner: torch.UntypedStorage) -> None:
        """Make ``storage`` another name for the bytes of ``owner``; they live as long as either."""
        entry = self._entries.get(storage._cdata)
        if entry is not None:
            self._resize(entry, 0)
            entry.names = owner

    def pass_through(self, num_bytes: int) -> None:
        """Count bytes that live only for a moment on top of the rest."""
        self.peak_bytes = max(self.peak_bytes, self.live_bytes + num_bytes)

    def knows(self, storage: torch.UntypedStorage) -> bool:
        """Return whether the storage is counted."""
        return storage._cdata in self._entries

    def _resize(self, entry: _Entry, num_bytes: int) -> None:
        if entry.names is None and num_bytes != entry.num_bytes:
            self._live[entry.epoch] += num_bytes - entry.num_bytes
            entry.num_bytes = num_bytes
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _remove(self, key: int) -> None:
        entry = self._entries.pop(key)
        self._live[entry.epoch] -= entry.num_bytes


class StorageWatch(TorchDispatchMode):
    """Sees every operation inside it, on whichever thread.

    ``peak_bytes``: most bytes alive at once of the storages made since it began, and of those in ``ledger``. What a
    kernel allocates inside itself does not count, nor gloo's clones of gradient buffers.
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
                if storage._cdata in given and not fresh:  # in place, or a view: memory made elsewhere
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
        """Called after operation ``where`` grew the live bytes from ``before``; may raise."""
        self.peak_bytes = max(self.peak_bytes, self.ledger.live_bytes)


def watched_peak_bytes(run_step: Callable[[], object]) -> int:
    """Return the peak of tensor bytes that ``run_step()`` allocates."""
    with StorageWatch() as watch:
        run_step()
    return watch.peak_bytes
