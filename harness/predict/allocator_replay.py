"""Says what a sequence of requests takes under some settings: peak, reserved, the smallest device, first failure."""

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from harness.predict.allocator import Allocator
from harness.predict.allocator_blocks import Block, Device, OutOfDeviceMemoryError, Pool, Segment, copied
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


class _Limited(Allocator):
    """Fails before a request that its device may not hold; once it ``retries``, where torch would fail."""

    retries, enough_bytes = False, 0

    def _new_block(self, pool: Pool, stream: int, size: int) -> Block | None:
        if not self.retries:
            most = self.reserved + size + 2 * self.settings.large_segment_bytes  # pages of both ends
            return None if most > self.device.limit_bytes else super()._new_block(pool, stream, size)
        block = super()._new_block(pool, stream, size)
        if block is None:
            self.device.limit_bytes = math.inf
            self._grow(pool, stream, size)
            self.enough_bytes = self.device.used_bytes
        return block


@dataclass(frozen=True)
class _Start:
    """The state before event ``at``, up to which a device of ``num_bytes`` or more makes no difference."""

    at: int
    replay: _Replay
    allocator: _Limited

    @staticmethod
    def of(events: Sequence[Request], cycles: Sequence[Cycle], settings: AllocatorSettings, device: Device) -> "_Start":
        """Find the state; it is before all cycles."""
        replay = _Replay(allocator := _Limited(settings, device))
        end = cycles[0].begin if cycles else len(events)
        replay.run(events, 0, end)
        return _Start(end if replay.failed is None else replay.failed, replay, allocator)

    def on(self, limit_bytes: float) -> tuple[_Replay, _Limited]:
        """Return the same state on a device that gives so many bytes."""
        replay, allocator = copy(self.replay), copy(self.allocator)
        allocator.retries, allocator.changes = True, []
        allocator.device = replace(allocator.device, limit_bytes=limit_bytes)
        allocator._pools, allocator._allocated = copied(allocator._pools, allocator._allocated)
        replay.allocator, replay.addresses, replay.failed = allocator, {**replay.addresses}, None
        return replay, allocator


def replayed(
    events: Sequence[Request],
    settings: AllocatorSettings,
    limit_bytes: float = math.inf,
    total_bytes: int = 80 * GIB,
    cycles: Sequence[Cycle] = (),
) -> Outcome:
    """Return what the sequence takes from an empty device of ``total_bytes`` that gives at most ``limit_bytes``."""
    return _outcome(events, _Replay(Allocator(settings, Device(limit_bytes, total_bytes))), cycles)


def _outcome(events: Sequence[Request], replay: _Replay, cycles: Sequence[Cycle], at: int = 0) -> Outcome:
    """Replay the events from ``at`` on."""
    allocator, is_exact = replay.allocator, True
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


def sought(
    events: Sequence[Request],
    settings: AllocatorSettings,
    total_bytes: int = 80 * GIB,
    cycles: Sequence[Cycle] = (),
    peak_bytes: int | None = None,
) -> tuple[Outcome, int | None]:
    """Return what the sequence takes without a limit, and the smallest device that it fits on, in whole MiB.

    A smaller device than is reserved may do, as torch gives cached segments back before it fails. None: a memory
    fraction forbids it. Trials end early where a long sequence would take seconds.
    """
    device = Device(peak_of(events) if peak_bytes is None else peak_bytes, total_bytes)
    start = _Start.of(events, cycles, settings, device)
    free = _outcome(events, start.on(math.inf)[0], cycles, start.at)
    if free.failed is not None:
        return free, None
    low, high = free.peak_allocated_bytes // MIB, -(-free.peak_reserved_bytes // MIB)
    size, step, left = free.least_bytes // MIB, 1, _MOST_REQUESTS
    while low < high and left > 0:
        size = max(low, min(size, high - 1))
        replay, allocator = start.on(size * MIB)
        found, left = _outcome(events, replay, cycles, start.at), left - len(events) + start.at
        if found.failed is None:
            high = -(-found.peak_reserved_bytes // MIB)
            size, step = high - step, step * 8
        else:
            low = max(size + 1, -(-allocator.enough_bytes // MIB))
            size = (low + high) // 2
    return free, high * MIB


def peak_of(events: Sequence[Request]) -> int:
    """Return the most bytes that are asked for at once: the least that any allocator has allocated then."""
    rounded = AllocatorSettings().rounded
    sizes = {key: rounded(num_bytes) for key, num_bytes, _ in events if num_bytes}
    return max(accumulate(sizes.get(key, 0) * (1 if num_bytes else -1) for key, num_bytes, _ in events), default=0)
