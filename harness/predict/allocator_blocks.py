"""Holds the parts of the replayed allocator: blocks in address order, pools of free ones, and the device below.

Names of c10/cuda/CUDACachingAllocator.cpp: `Block`, `BlockPool`, `ExpandableSegment`.
"""

import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from harness.predict.allocator_settings import ROUND_LARGE_BYTES
from harness.units import GIB

_address = attrgetter("address")
Segment = tuple[int, int, list[tuple[int, int, bool]]]


class OutOfDeviceMemoryError(Exception):
    """A request failed after every retry."""


@dataclass(slots=True, eq=False, repr=False)
class Block:
    """A part of a segment, or of an expandable segment's range of addresses, where it may also be unmapped.

    ``expandable``: first address and page of the range. ``is_busy``: a tensor or an unfinished stream has it. ``uses``:
    other streams that used the block; ``captured_uses``: those that did while a graph was captured. ``age``: calls of
    the pool when it became free.
    """

    pool: "Pool"
    stream: int
    address: int
    num_bytes: int
    expandable: tuple[int, int] | None = None
    is_mapped: bool = True
    is_busy: bool = False
    before: "Block | None" = None
    after: "Block | None" = None
    uses: tuple[int, ...] = ()
    captured_uses: tuple[int, ...] = ()
    num_events: int = 0
    age: int = 0

    @property
    def reach_bytes(self) -> int:
        """Return the bytes that a free block can grow to: what is unmapped behind it belongs to it."""
        after = self.after
        return self.num_bytes + (after.num_bytes if after and not after.is_mapped else 0)

    def range(self) -> tuple[int, int]:
        """Return first address and page of its expandable segment."""
        assert self.expandable is not None
        return self.expandable

    @property
    def is_whole(self) -> bool:
        return self.before is None and self.after is None

    def insert(self, left: "Block | None", right: "Block | None") -> None:
        """Put the block between two."""
        self.before, self.after = left, right
        if left:
            left.after = self
        if right:
            right.before = self


def _mapped_run(head: Block) -> list[tuple[int, int, bool]]:
    """Return address, bytes and whether it is busy, of the block and all mapped ones behind it."""
    run: list[tuple[int, int, bool]] = []
    block: Block | None = head
    while block and block.is_mapped:
        run.append((block.address, block.num_bytes, block.is_busy))
        block = block.after
    return run


def segments_of(blocks: Iterable[Block]) -> list[Segment]:
    """Return every run of mapped blocks as a snapshot lists it: address, bytes, and its blocks likewise."""
    heads = {id(block): block for block in blocks if not (block.before and block.before.is_mapped)}
    return sorted(
        (head.address, sum(part[1] for part in run), run) for head in heads.values() if (run := _mapped_run(head))
    )


@dataclass(eq=False)
class Pool:
    """Free blocks by stream in order of (bytes, address), and unmapped ranges by stream in order of address."""

    is_small: bool
    num_calls: int = 0
    free: defaultdict[int, list[tuple[int, int, Block]]] = field(default_factory=lambda: defaultdict(list))
    unmapped: dict[int, list[Block]] = field(default_factory=dict)

    def put(self, block: Block) -> None:
        """Add a free block, or an unmapped range: a whole one is the driver's again."""
        if block.is_mapped:
            block.age = self.num_calls
            insort(self.free[block.stream], (block.num_bytes, block.address, block))
        elif not block.is_whole:
            self.put_unmapped(block)

    def take(self, block: Block) -> None:
        """Remove a free block, or an unmapped range."""
        if block.is_mapped:
            free = self.free[block.stream]
            del free[bisect_left(free, (block.num_bytes, block.address))]
        else:
            self.unmapped[block.stream].remove(block)

    def put_unmapped(self, block: Block) -> None:
        """Add an unmapped range."""
        insort(self.unmapped.setdefault(block.stream, []), block, key=_address)

    def blocks(self, num_bytes: int = 0) -> list[Block]:
        """Return the free blocks of at least so many bytes."""
        return [entry[2] for free in self.free.values() for entry in free[bisect_left(free, (num_bytes,)) :]]


Pools = dict[int | None, tuple[Pool, Pool]]


def copied(pools: Pools, allocated: dict[int, Block]) -> tuple[Pools, dict[int, Block]]:
    """Return pools and allocated blocks, by address, with copies of all blocks. No other stream may use a block."""
    new: dict[int, Block] = {}
    twins = {id(pool): Pool(pool.is_small, pool.num_calls) for both in pools.values() for pool in both}

    def twin(block: Block) -> Block:
        new[id(block)] = made = Block(
            twins[id(block.pool)], block.stream, block.address, block.num_bytes, block.expandable, block.is_mapped,
            block.is_busy, block.before, block.after, age=block.age,
        )  # fmt: skip
        return made

    blocks = {address: twin(block) for address, block in allocated.items()}
    for pool in (pool for both in pools.values() for pool in both):
        own = twins[id(pool)]
        own.free |= {at: [(*entry[:2], twin(entry[2])) for entry in free] for at, free in pool.free.items()}
        own.unmapped = {at: [*map(twin, unmapped)] for at, unmapped in pool.unmapped.items()}
    for block in new.values():
        block.before, block.after = new.get(id(block.before)), new.get(id(block.after))
    return {name: (twins[id(small)], twins[id(large)]) for name, (small, large) in pools.items()}, blocks


@dataclass
class Device:
    """A device of ``total_bytes`` that gives at most ``limit_bytes``, at addresses that it never gives twice."""

    limit_bytes: float = math.inf
    total_bytes: int = 80 * GIB
    used_bytes: int = 0
    next_address: int = 1 << 45

    def reserve(self, num_bytes: int) -> int:
        """Return the address of a new range, which has no memory yet."""
        address = self.next_address
        self.next_address += -(-num_bytes // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES + ROUND_LARGE_BYTES
        return address

    def take(self, num_bytes: int) -> bool:
        """Count memory; False if it has too little left."""
        if self.used_bytes + num_bytes > self.limit_bytes:
            return False
        self.used_bytes += num_bytes
        return True

    def give_back(self, num_bytes: int) -> None:
        """Count memory that is free again."""
        self.used_bytes -= num_bytes
