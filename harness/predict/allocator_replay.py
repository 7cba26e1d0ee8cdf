"""Says what a sequence of requests takes under some settings: peak, reserved, the smallest device, first failure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.predict.allocator import Allocator
from harness.predict.allocator_blocks import Block, Device, OutOfDeviceMemoryError, Pool, Segment
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
# Repetitions in which blocks may come back to their places: few suffice, or 60 do not (DECISIONS.md, 35).
_MOST_CYCLES = 6
# Requests of all replays that seek the smallest device: half a second.
_MOST_REQUESTS = 500_000


class Cycle(NamedTuple):
    """Events from ``begin`` to ``end`` that the job repeats ``times`` more with new blocks.

    They end blocks of the ``num_keys`` requests before them, too; keys below ``first_key`` have no part in that.
    """

    begin: int
    end: int
    first_key: int
    num_keys: int
    times: int


@dataclass(frozen=True)
class Outcome:
    """What the requests took. ``failed``: position in the sequence of the first request that failed; it ends there.

    ``least_bytes``: the most that was not a cached segment at any of the fullest moments; of those within 4 MiB the
    first counts.
    ``is_exact``: whether every cycle was repeated as often as the job does, or until nothing changed any more.
    """

    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    num_retries: int
    failed: int | None
    least_bytes: int = 0
    is_exact: bool = True


class _Replay:
    """The allocator's state after some events: the address of each block by its key."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator, self.addresses = allocator, dict[int, int]()
        self.failed: int | None = None
        self.least = self._looked_at = 0

    def run(self, events: Sequence[Request], begin: int, end: int) -> None:
        """Run a part of the events, until one fails."""
        allocator, addresses = self.allocator, self.addresses
        malloc, free = allocator.malloc, allocator.free
        for at, (key, num_bytes, stream) in enumerate(events[begin:end], begin):
            if num_bytes is None:
                if allocator.allocated > self._looked_at:
                    self.look()
                free(addresses.pop(key))
                continue
            try:
                addresses[key] = malloc(num_bytes, stream)
            except OutOfDeviceMemoryError:
                self.failed = at
                return

    def look(self) -> None:
        """Note what no cached segment is, where memory is as full as never before."""
        self._looked_at = self.allocator.allocated + _LOOK_EVERY_BYTES
        self.least = max(self.least, self.allocator.reserved - self.allocator.releasable_bytes())

    def repeat(self, events: Sequence[Request], cycle: Cycle) -> bool:
        """Repeat a cycle; skip what is left once every block is where an earlier repetition had it.

        Return False where that needs too many, or where the allocator counts calls, so that no state comes again.
        """
        seen, left, period = [self._state()], cycle.times, 0
        while left and self.failed is None:
            if not period and (len(seen) > _MOST_CYCLES or self.allocator.settings.collects):
                return False
            first, shift = cycle.first_key, cycle.num_keys
            self.addresses = {key - shift * (key >= first): address for key, address in self.addresses.items()}
            self.run(events, cycle.begin, cycle.end)
            state, left = self._state(), left - 1
            if not period and state in seen:
                period = len(seen) - seen.index(state)
                left %= period
            seen.append(state)
        return True

    def _state(self) -> tuple[dict[int, int], list[Segment]]:
        return self.addresses.copy(), self.allocator.segments()


class _Growing(Allocator):
    """Lets its device grow where a request fails after every retry, or ``stops`` there.

    ``enough_bytes``: what the device would have needed for the first one; 0 where none failed.
    """

    def __init__(self, settings: AllocatorSettings, device: Device, *, stops: bool) -> None:
        super().__init__(settings, device)
        self.stops, self.enough_bytes = stops, 0

    def _new_block(self, pool: Pool, stream: int, size: int) -> Block | None:
        block = super()._new_block(pool, stream, size)
        if block is None:
            self.device.limit_bytes = math.inf
            block = self._grow(pool, stream, size)
            self.device.limit_bytes = self.device.used_bytes
            self.enough_bytes = self.enough_bytes or self.device.used_bytes
        return None if self.enough_bytes and self.stops else block


def replayed(
    events: Sequence[Request],
    settings: AllocatorSettings,
    limit_bytes: float = math.inf,
    total_bytes: int = 80 * GIB,
    cycles: Sequence[Cycle] = (),
) -> Outcome:
    """Return what the sequence takes from an empty device of ``total_bytes`` that gives at most ``limit_bytes``."""
    return _outcome(events, Allocator(settings, Device(limit_bytes, total_bytes)), cycles)


def _outcome(events: Sequence[Request], allocator: Allocator, cycles: Sequence[Cycle]) -> Outcome:
    replay, at, is_exact = _Replay(allocator), 0, True
    for cycle in cycles:
        replay.run(events, at, cycle.end)
        at = cycle.end
        if replay.failed is None:
            is_exact = replay.repeat(events, cycle) and is_exact
        if replay.failed is not None:
            break
    else:
        replay.run(events, at, len(events))
    if not events or allocator.allocated == allocator.peak_allocated:  # nothing was given back since
        replay.look()
    return Outcome(
        allocator.allocated,
        allocator.reserved,
        allocator.peak_allocated,
        allocator.peak_reserved,
        allocator.num_retries,
        replay.failed,
        replay.least,
        is_exact,
    )


def fits_bytes(
    events: Sequence[Request],
    settings: AllocatorSettings,
    free: Outcome,
    total_bytes: int,
    cycles: Sequence[Cycle] = (),
) -> int | None:
    """Return the smallest device, to 2 MiB, that the sequence fits on; ``free``: its outcome without a limit.

    Reserved is not needed: before torch fails, it gives cached segments back. None: a memory fraction forbids it.
    Where a request fails, the device grows by what it lacks; the next one begins with all of that. Once nothing fails,
    smaller ones are tried, unless the sequence is so long that this takes seconds. That takes for granted that more
    memory never hurts.
    """
    if free.failed is not None:
        return None
    low, high, step, left = free.peak_allocated_bytes // MIB, 0, 1, _MOST_REQUESTS
    size = max(low, free.least_bytes // MIB if settings.expandable_segments else low)
    while not high or (low < high and left > 0):
        left -= len(events)
        allocator = _Growing(settings, Device(size * MIB, total_bytes), stops=high > 0)
        found = _outcome(events, allocator, cycles)
        if allocator.enough_bytes:
            low = max(size + 1, -(-allocator.enough_bytes // MIB))
            grown = allocator.device.limit_bytes if found.failed is None else free.peak_reserved_bytes
            size = (low + high) // 2 if high else max(low, -(-int(grown) // MIB))
        elif found.failed is not None:
            return None
        else:
            high = -(-found.peak_reserved_bytes // MIB)
            size, step = max(low, high - step), step * 8
    return high * MIB
