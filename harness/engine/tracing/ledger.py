"""Live and peak bytes, counted by storage: views share one, and an entry ends when the last tensor lets go of it."""

import weakref
from dataclasses import dataclass

import torch


@dataclass
class _Entry:
    reference: weakref.ref
    num_bytes: int
    epoch: int
    names: torch.UntypedStorage | None = None  # whose bytes it has and keeps alive


class StorageLedger:
    """Counts each storage once, from the first tensor seen on it until it is freed or resized.

    Everything goes by storage, never by tensor: V is a view of the QKV projection's output and keeps all of it alive,
    and output-discarding checkpoints empty a storage under living tensors. ``live_bytes`` and ``peak_bytes`` are those
    of storages made since the last :meth:`new_epoch`, so what an earlier pass left behind never counts as freed by a
    later one.
    """

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._live = [0]
        self.peak_bytes = 0

    @property
    def live_bytes(self) -> int:
        """Bytes alive of this epoch."""
        return self._live[-1]

    def live_of(self, epoch: int) -> int:
        """Bytes alive of an earlier epoch, counted from 0."""
        return self._live[epoch]

    def new_epoch(self) -> None:
        """Count from zero; what is alive stays known."""
        self._live.append(0)
        self.peak_bytes = 0

    def mark(self) -> int:
        """Forget the peak so far; returns the bytes alive now."""
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
        """A storage changed its size in place; unknown ones are none of our business."""
        entry = self._entries.get(storage._cdata)
        if entry is not None:
            self._resize(entry, storage.nbytes())

    def share(self, storage: torch.UntypedStorage, owner: torch.UntypedStorage) -> None:
        """``storage`` is from now on another name for the bytes of ``owner``, which live as long as either."""
        entry = self._entries.get(storage._cdata)
        if entry is not None:
            self._resize(entry, 0)
            entry.names = owner

    def pass_through(self, num_bytes: int) -> None:
        """Bytes that were alive for a moment beside everything else."""
        self.peak_bytes = max(self.peak_bytes, self.live_bytes + num_bytes)

    def knows(self, storage: torch.UntypedStorage) -> bool:
        """Whether the storage is counted."""
        return storage._cdata in self._entries

    def _resize(self, entry: _Entry, num_bytes: int) -> None:
        if entry.names is None and num_bytes != entry.num_bytes:
            self._live[entry.epoch] += num_bytes - entry.num_bytes
            entry.num_bytes = num_bytes
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _remove(self, key: int) -> None:
        entry = self._entries.pop(key)
        self._live[entry.epoch] -= entry.num_bytes
