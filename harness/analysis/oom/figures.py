"""What a message of torch's caching allocator says, as numbers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """A process that torch listed: ``used_bytes`` on the device, None where the driver did not tell."""

    pid: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class AllocatorFigures:
    """Bytes, to the two decimals that torch prints; None where the text does not say.

    ``allocated``: live tensors and everything in private pools, their free blocks too. ``private_pool``: the part of it
    in private pools. ``unallocated``: reserved by the allocator and free, when cached blocks had been given back
    already. ``this_process``: all that this process holds on the device. ``allowed``: the limit that the process set
    itself. ``is_beyond_counting``: asked for more than 1 EB. ``is_rejected``: refused by that limit beforehand.
    """

    tried_bytes: int | None = None
    device: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    this_process_bytes: int | None = None
    processes: tuple[ProcessMemory, ...] = ()
    allowed_bytes: int | None = None
    allocated_bytes: int | None = None
    private_pool_bytes: int | None = None
    unallocated_bytes: int | None = None
    is_beyond_counting: bool = False
    is_rejected: bool = False

    @property
    def reserved_bytes(self) -> int | None:
        """All that the caching allocator holds."""
        if self.allocated_bytes is None or self.unallocated_bytes is None:
            return None
        return self.allocated_bytes + self.unallocated_bytes
