"""Replays torch's caching allocator: which segments a sequence of requests takes from a device, byte by byte.

The rules are those of the backend "native" of c10/cuda/CUDACachingAllocator.cpp; every method names the functions of
torch that it follows. Equal to torch 2.11's allocator block by block (tests/scripted_cuda/test_allocator.py);
the source of 2.6 to 2.10 was read, not run (:func:`harness.predict.allocator_settings.is_known`).
"""

import math
from bisect import bisect_left
from collections import deque

from harness.predict.allocator_blocks import Block, Device, OutOfDeviceMemoryError, Pool, Segment, segments_of
from harness.predict.allocator_settings import SMALL_BYTES, SMALL_SEGMENT_BYTES, AllocatorSettings
from harness.units import format_bytes

_DEFAULT_POOL = None


class Allocator:
    """The state of one device's allocator, and its totals in bytes as `torch.cuda.memory_stats` has them.

    ``active``: allocated, or freed while another stream may still use it. Streams are numbers; a private pool's name is
    any number. What this cannot know: which events are done, which the caller says (:meth:`complete`).
    """

    def __init__(self, settings: AllocatorSettings | None = None, device: Device | None = None) -> None:
        self.settings, self.device = settings or AllocatorSettings(), device or Device()
        self.reserved = self.allocated = 0
        self.peak_reserved = self.peak_allocated = self.num_retries = self.num_events = 0
        self.changes: list[tuple[int, int]] = []  # of mapped memory, in order: address, bytes, negative if given back
        self._pools: dict[int | None, tuple[Pool, Pool]] = {_DEFAULT_POOL: (Pool(is_small=True), Pool(is_small=False))}
        self._num_graphs: dict[int, int] = {}  # of each private pool
        self._captures: list[tuple[int, tuple[int, ...] | None]] = []
        self._allocated: dict[int, Block] = {}
        self._deferred: list[Block] = []  # freed during a capture
        self._events: dict[int, deque[tuple[int, Block]]] = {}
        self._num_done: float = math.inf
        self._sizes: dict[int, int] = {}  # of blocks, by bytes asked for: few sizes come again and again
        self._is_expandable = self.settings.expandable_segments
        self._max_split_bytes = self.settings.max_split_bytes
        self._collects, fraction = self.settings.collects, self.settings.memory_fraction
        self._allowed_bytes = math.inf if fraction is None else int(fraction * self.device.total_bytes)

    # ---- requests

    def malloc(self, num_bytes: int, stream: int = 0) -> int:
        """Return the address of a new block (`malloc`, `alloc_found_block`). OutOfDeviceMemoryError."""
        if (self._events or self._deferred) and not self._captures:
            self._process_events(self._num_done)
        size = self._sizes.get(num_bytes) or self._sizes.setdefault(num_bytes, self.settings.rounded(num_bytes))
        pool = self._pools[self._pool_name(stream) if self._captures else _DEFAULT_POOL][size > SMALL_BYTES]
        block = self._free_block(pool, stream, size) or self._new_block(pool, stream, size)
        if block is None:
            held = f"{format_bytes(self.reserved)} reserved, {format_bytes(self.allocated)} allocated"
            raise OutOfDeviceMemoryError(f"a request of {format_bytes(num_bytes)} failed: {held}")
        address, rest = block.address, block.num_bytes - size
        if rest and (self._is_expandable or pool.is_small or (rest > SMALL_BYTES and size < self._max_split_bytes)):
            after = block.after  # `should_split`: what is not split off counts as allocated
            tail = Block(pool, stream, address + size, rest, block.expandable, True, False, block, after)
            block.num_bytes, block.after = size, tail
            if after:
                after.before = tail
            pool.put(tail)
        block.is_busy = True
        self._allocated[address] = block
        if (allocated := self.allocated + block.num_bytes) > self.peak_allocated:
            self.peak_allocated = allocated
        self.allocated = allocated
        return address

    def free(self, address: int) -> None:
        """Free the block at this address (`free`); other streams may keep it for a while."""
        block = self._allocated.pop(address)
        self.allocated -= block.num_bytes
        if not block.uses:
            self._put(block)
        elif self._captures:
            self._deferred.append(block)
        else:
            self._insert_events(block)

    @property
    def active(self) -> int:
        """Bytes that are allocated, or freed while another stream may still use them."""
        waiting = {block.address: block.num_bytes for events in self._events.values() for _, block in events}
        return self.allocated + sum((waiting | {block.address: block.num_bytes for block in self._deferred}).values())

    def record_stream(self, address: int, stream: int) -> None:
        """Note that another stream uses the block (`recordStream`)."""
        block = self._allocated[address]
        if stream != block.stream and stream not in block.uses:
            block.uses += (stream,)
            block.captured_uses += (stream,) if self._captures else ()

    def complete(self, num_events: float = math.inf) -> None:
        """Say that the first ``num_events`` events are done, later ones not; the next request asks, as torch does."""
        self._num_done = num_events

    def empty_cache(self) -> None:
        """Give unused memory back (`emptyCache`, `release_cached_blocks`): it waits for all events.

        Only whole segments, or whole pages of expandable ones; of private pools only those that no graph has.
        """
        self._process_events(math.inf)
        for name in (_DEFAULT_POOL, *(name for name, count in self._num_graphs.items() if not count)):
            for pool in reversed(self._pools[name]):
                for block in pool.blocks():
                    self._release(block)

    def releasable_bytes(self) -> int:
        """Return what :meth:`empty_cache` would give back of the default pool without waiting for events."""
        is_expandable, pools = self.settings.expandable_segments, self._pools[_DEFAULT_POOL]
        least = (self._page_bytes(pool) if is_expandable else SMALL_SEGMENT_BYTES for pool in pools)
        blocks = (block for pool, num_bytes in zip(pools, least, strict=True) for block in pool.blocks(num_bytes))
        return sum(last - first for first, last in map(_releasable, blocks))

    # ---- private pools, of CUDA graphs and of MemPool

    def begin_pool(self, name: int, streams: tuple[int, ...] | None = None) -> None:
        """Serve requests of these streams, or of all, from a private pool (`beginAllocateToPool`)."""
        self._pools.setdefault(name, (Pool(is_small=True), Pool(is_small=False)))
        self._num_graphs[name] = self._num_graphs.get(name, 0) + 1
        self._captures.append((name, streams))

    def end_pool(self, name: int) -> None:
        """Serve requests from the usual pools again (`endAllocateToPool`)."""
        self._captures = [capture for capture in self._captures if capture[0] != name]

    def release_pool(self, name: int) -> None:
        """Say that a graph is gone (`releasePool`); without any, :meth:`empty_cache` gives the pool's memory back."""
        self._num_graphs[name] -= 1

    # ---- what other streams use

    def _insert_events(self, block: Block) -> None:
        """`insert_events`."""
        for stream in block.uses:
            self.num_events += 1
            block.num_events += 1
            self._events.setdefault(stream, deque()).append((self.num_events, block))
        block.uses = ()

    def _process_events(self, num_done: float) -> None:
        """`insert_events_deferred_until_no_capture`, then `process_events` or `synchronize_and_free_events`.

        What was used only within the capture in which it was freed needs no event: the graph orders it.
        """
        deferred, self._deferred = self._deferred, []
        for block in deferred:
            block.uses = tuple(use for use in block.uses if use not in block.captured_uses)
            block.captured_uses = ()
            self._insert_events(block)
            if not block.num_events:
                self._put(block)
        for events in self._events.values():
            while events and events[0][0] <= num_done:
                block = events.popleft()[1]
                block.num_events -= 1
                if not block.num_events:
                    self._put(block)

    # ---- free blocks

    def _pool_name(self, stream: int) -> int | None:
        """`get_pool`: in a capture a private pool goes before the usual ones; up to 1 MiB is small."""
        return next((name for name, streams in self._captures if streams is None or stream in streams), _DEFAULT_POOL)

    def _put(self, block: Block) -> None:
        """`free_block`, `try_merge_blocks`: with free neighbours that are mapped if it is, and unmapped if it is."""
        pool, before, after, is_mapped = block.pool, block.before, block.after, block.is_mapped
        block.is_busy = False
        if before and not before.is_busy and before.is_mapped == is_mapped:
            pool.take(before)
            block.address = before.address
            block.num_bytes += before.num_bytes
            block.before = before = before.before
            if before:
                before.after = block
        if after and not after.is_busy and after.is_mapped == is_mapped:
            pool.take(after)
            block.num_bytes += after.num_bytes
            block.after = after = after.after
            if after:
                after.before = block
        pool.put(block)

    def _free_block(self, pool: Pool, stream: int, size: int) -> Block | None:
        """`get_free_block`: the smallest that is large enough, then the lowest address."""
        if self._collects:
            pool.num_calls += 1
        free = pool.free.get(stream)
        if not free or (at := bisect_left(free, (size, -1))) == len(free):
            return None
        found, _, block = free[at]
        if self._is_expandable and (after := block.after) and not after.is_mapped:
            reach, last = found + after.num_bytes, len(free) - 1
            while at < last and free[at + 1][0] < reach and (further := free[at + 1][2].reach_bytes) < reach:
                at, reach = at + 1, further
            found, _, block = free[at]
        most = self._max_split_bytes
        if size < most <= found:
            return None
        if size >= most and found >= size + self.settings.max_non_split_rounding_bytes:
            return None
        del free[at]
        return block

    # ---- new memory

    def _new_block(self, pool: Pool, stream: int, size: int) -> Block | None:
        """`malloc`: collect, ask the device, release what is too large to split, release all. No retry in a capture."""
        if self._collects:
            self._collect()
        block = self._grow(pool, stream, size)
        if block is None and self._release_oversize(pool, stream, size):
            block = self._grow(pool, stream, size)
        if block is None and not self._captures:
            self.empty_cache()
            self.num_retries += 1
            block = self._grow(pool, stream, size)
        return block

    def _grow(self, pool: Pool, stream: int, size: int) -> Block | None:
        """`alloc_block`."""
        segment_bytes = self.settings.segment_bytes(size)
        if self.reserved + segment_bytes > self._allowed_bytes:
            return None
        if self.settings.expandable_segments:
            return self._expand(pool, stream, size)
        if not self.device.take(segment_bytes):
            return None
        address = self.device.reserve(segment_bytes)
        self._count(address, segment_bytes)
        return Block(pool, stream, address, segment_bytes)

    def _count(self, address: int, num_bytes: int) -> None:
        self.changes.append((address, num_bytes))
        self.reserved += num_bytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _expand(self, pool: Pool, stream: int, size: int) -> Block | None:
        """`try_allocate_expandable_block`: map free addresses until they hold the request."""
        if size > self._range_bytes(pool):
            return None
        block = self._expandable_block(pool, stream, size)
        if not block.is_mapped and not self._map(block, min(block.num_bytes, size)):
            return None
        while block.num_bytes < size:
            following = block.after
            assert following is not None
            if not self._map(following, min(size - block.num_bytes, following.num_bytes)):
                return None
            block = following
        pool.take(block)
        return block

    def _expandable_block(self, pool: Pool, stream: int, size: int) -> Block:
        """`find_expandable_block`: the lowest address with room, from the free block before a gap on; or a new range.

        A range is 1 1/8 of the device long.
        """
        for gap in pool.unmapped.get(stream, ()):
            first = gap.before if gap.before and not gap.before.is_busy else gap
            room = 0
            block: Block | None = first
            while room < size and block and not block.is_busy:
                room, block = room + block.num_bytes, block.after
            if room >= size:
                return first
        length, page = self._range_bytes(pool), self._page_bytes(pool)
        address = self.device.reserve(length)
        new = Block(pool, stream, address, length, (address, page), is_mapped=False)
        pool.put_unmapped(new)
        return new

    def _page_bytes(self, pool: Pool) -> int:
        return SMALL_SEGMENT_BYTES if pool.is_small else self.settings.large_segment_bytes

    def _range_bytes(self, pool: Pool) -> int:
        page = self._page_bytes(pool)
        return -(-(self.device.total_bytes * 9 // 8) // page) * page

    def _map(self, block: Block, num_bytes: int) -> bool:
        """`map_block`: whole pages; all of them or none."""
        page, pool, made = block.range()[1], block.pool, 0
        wanted = -(-num_bytes // page) * page
        while made < wanted and self.device.take(page):
            made += page
        if made < wanted:
            self.device.give_back(made)
            return False
        pool.unmapped[block.stream].remove(block)
        block.is_mapped = True
        if wanted < block.num_bytes:
            left = block.num_bytes - wanted
            rest = Block(pool, block.stream, block.address + wanted, left, block.expandable, is_mapped=False)
            block.num_bytes = wanted
            rest.insert(block, block.after)
            pool.put_unmapped(rest)
        self._count(block.address, wanted)
        self._put(block)
        return True

    # ---- memory given back

    def _release(self, block: Block) -> None:
        """`release_blocks`."""
        if block.expandable:
            self._unmap(block)
        elif block.is_whole:
            self._release_segment(block)

    def _release_segment(self, block: Block) -> None:
        """`release_block`."""
        block.pool.take(block)
        self.device.give_back(block.num_bytes)
        self._count(block.address, -block.num_bytes)

    def _unmap(self, block: Block) -> None:
        """`unmap_block`: whole pages; what is left of a page at either end stays a free block."""
        pool, end = block.pool, block.address + block.num_bytes
        first, last = _releasable(block)
        if last == first:
            return
        pool.take(block)
        for address, num_bytes in ((block.address, first - block.address), (last, end - last)):
            if num_bytes:
                part = Block(pool, block.stream, address, num_bytes, block.expandable)
                part.insert(*((block, block.after) if address == last else (block.before, block)))
                pool.put(part)
        block.address, block.num_bytes, block.is_mapped = first, last - first, False
        self.device.give_back(block.num_bytes)
        self._count(block.address, -block.num_bytes)
        self._put(block)

    def _collect(self) -> None:
        """`garbage_collect_cached_blocks`: whole large blocks of the default pool, unless younger than the mean."""
        target = self.reserved - int(self.settings.garbage_collection_threshold * self._allowed_bytes)
        pool = self._pools[_DEFAULT_POOL][1]
        whole = [block for block in pool.blocks() if block.is_whole]
        total_age = sum(pool.num_calls - block.age for block in whole)
        released, has_released = 0, True
        while 0 < target > released and has_released and whole:
            mean_age, has_released = total_age / len(whole), False
            for block in list(whole):
                age = pool.num_calls - block.age
                if age >= mean_age:
                    has_released, released, total_age = True, released + block.num_bytes, total_age - age
                    whole.remove(block)
                    self._release_segment(block)

    def _release_oversize(self, pool: Pool, stream: int, size: int) -> bool:
        """`release_available_cached_blocks`, with max_split_size_mb: blocks that are too large to be split.

        Expandable blocks stay (2.11; an earlier source has no such exception).
        """
        if math.isinf(self.settings.max_split_bytes):
            return False
        wanted, free = max(size, self.settings.max_split_bytes), pool.free.get(stream, [])
        at = bisect_left(free, (wanted, -1))
        released = 0
        for block in [free[at][2]] if at < len(free) else [entry[2] for entry in reversed(free)]:
            if released >= wanted or block.num_bytes < self.settings.max_split_bytes:
                break
            if not block.expandable:
                released += block.num_bytes
                self._release_segment(block)
        return released >= wanted

    # ---- what is there

    def segments(self) -> list[Segment]:
        """Return every run of mapped blocks as a snapshot lists it: address, bytes, and its blocks likewise."""
        blocks = [block for pools in self._pools.values() for pool in pools for block in pool.blocks()]
        blocks += [*self._allocated.values(), *self._deferred]
        blocks += [block for events in self._events.values() for _, block in events]
        return segments_of(blocks)


def _releasable(block: Block) -> tuple[int, int]:
    """Return the addresses between which a free block can be given back: a whole segment, or whole pages."""
    end = block.address + block.num_bytes
    if not block.expandable:
        return block.address if block.is_whole else end, end
    base, page = block.expandable
    first = -(-(block.address - base) // page) * page + base
    last = (end - base) // page * page + base
    return first, max(first, last)
