"""Says what a sequence of requests takes under some settings: peak, reserved, the smallest device, first failure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.predict.allocator import Allocator
from harness.predict.allocator_blocks import Device, OutOfDeviceMemoryError
from harness.predict.allocator_settings import AllocatorSettings
from harness.units import GIB, MIB


class Event(NamedTuple):
    """A request of ``num_bytes``, or with None the end of the block that the request of this ``key`` made."""

    key: int
    num_bytes: int | None
    stream: int = 0


# A plain tuple of the same is made in a quarter of the time.
Request = Event | tuple[int, int | None, int]
_LOOK_EVERY_BYTES = 4 * MIB


@dataclass(frozen=True)
class Outcome:
    """What the requests took. ``failed``: position in the sequence of the first request that failed; it ends there.

    ``least_bytes``: the most that was not a cached segment at any of the fullest moments, looked at every 4 MiB.
    """

    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    num_retries: int
    failed: int | None
    least_bytes: int = 0


def replayed(
    events: Sequence[Request], settings: AllocatorSettings, limit_bytes: float = math.inf, total_bytes: int = 80 * GIB
) -> Outcome:
    """Return what the sequence takes from an empty device of ``total_bytes`` that gives at most ``limit_bytes``."""
    allocator, failed = Allocator(settings, Device(limit_bytes, total_bytes)), None
    addresses, malloc, free = dict[int, int](), allocator.malloc, allocator.free
    least = looked_at = 0
    for at, (key, num_bytes, stream) in enumerate(events):
        if num_bytes is None:
            free(addresses.pop(key))
            continue
        try:
            addresses[key] = malloc(num_bytes, stream)
        except OutOfDeviceMemoryError:
            failed = at
            break
        if allocator.allocated > looked_at:
            looked_at = allocator.allocated + _LOOK_EVERY_BYTES
            least = max(least, allocator.reserved - allocator.releasable_bytes())
    return Outcome(
        allocator.allocated, allocator.reserved, allocator.peak_allocated, allocator.peak_reserved,
        allocator.num_retries, failed, least,
    )  # fmt: skip


def fits_bytes(events: Sequence[Request], settings: AllocatorSettings, free: Outcome, total_bytes: int) -> int | None:
    """Return the smallest device, to 1 MiB, that the sequence fits on; ``free``: its outcome without a limit.

    Reserved is not needed: before torch fails, it gives cached segments back. None: a memory fraction forbids it.
    A bisection; it takes for granted that more memory never hurts.
    """
    if free.failed is not None:
        return None
    low, high = free.peak_allocated_bytes // MIB, -(-free.peak_reserved_bytes // MIB)
    while low < high:
        middle = (low + high) // 2
        if replayed(events, settings, middle * MIB, total_bytes).failed is None:
            high = middle
        else:
            low = middle + 1
    return high * MIB
