"""Live and peak bytes, counted by storage: views share one, and an entry ends when the last tensor lets go of it."""

import weakref

import torch


class StorageLedger:
    """Counts each storage once, from the first tensor seen on it until it is freed or resized.

    Everything goes by storage, never by tensor: V is a view of the QKV projection's output and keeps all of it alive,
    and output-discarding checkpoints empty a storage under living tensors.
    """

    def __init__(self) -> None:
        self.live_bytes = 0
        self.peak_bytes = 0
        self._known: dict[int, tuple[weakref.ref, int]] = {}

    def add(self, tensor: torch.Tensor) -> None:
        """Count the storage of ``tensor`` if it is new, or its new size."""
        self.add_storage(tensor.untyped_storage())

    def add_storage(self, storage: torch.UntypedStorage) -> None:
        """As :meth:`add`."""
        key = storage._cdata
        entry = self._known.get(key)
        if entry is None:
            self._known[key] = (weakref.ref(storage, lambda _ref: self._remove(key)), storage.nbytes())
            self._grow(storage.nbytes())
        elif entry[1] != storage.nbytes():
            self.resized(storage)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """A known storage changed its size in place; unknown ones are none of our business."""
        entry = self._known.get(storage._cdata)
        if entry is not None:
            self._known[storage._cdata] = (entry[0], storage.nbytes())
            self._grow(storage.nbytes() - entry[1])

    def knows(self, storage: torch.UntypedStorage) -> bool:
        """Whether the storage is counted."""
        return storage._cdata in self._known

    def mark(self) -> int:
        """Forget the peak so far; returns the bytes alive now."""
        self.peak_bytes = self.live_bytes
        return self.live_bytes

    def _remove(self, key: int) -> None:
        self.live_bytes -= self._known.pop(key)[1]

    def _grow(self, num_bytes: int) -> None:
        self.live_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
