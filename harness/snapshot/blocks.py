"""Segments and blocks of a snapshot: memory in use, memory that can go back to the device, and memory that cannot."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from harness.snapshot.fields import SnapshotFormatError, mapping, optional_size, sequence, size, text, word
from harness.snapshot.stacks import Owner, Stacks
from harness.snapshot.values import PrivatePool
from harness.units import MIB

# torch's documentation has "awaiting", its code writes "pending".
PENDING = frozenset({"active_pending_free", "active_awaiting_free"})
ALLOCATED, INACTIVE = "active_allocated", "inactive"
_DEFAULT_POOL = (0, 0)
_MOST_POOLS = 50
# An expandable segment gives back whole pages (c10/cuda/CUDACachingAllocator.cpp: kLargeBuffer, kSmallBuffer).
_PAGE_BYTES = {"large": 20 * MIB, "small": 2 * MIB}


@dataclass(slots=True)
class Live:
    """Blocks of one owner."""

    num_bytes: int = 0
    count: int = 0


@dataclass
class Blocks:
    """Sums over one device's segments; see ``DeviceMemory`` for what each means."""

    num_segments: int = 0
    num_blocks: int = 0
    reserved_bytes: int = 0
    allocated_bytes: int = 0
    requested: int | None = 0
    pending_bytes: int = 0
    releasable_bytes: int = 0
    private_free_bytes: int = 0
    inactive_bytes: int = 0
    largest_free_bytes: int = 0
    has_expandable_segments: bool = False
    pools: dict[str, list[int]] = field(default_factory=dict)
    live: dict[Owner, Live] = field(default_factory=dict)
    as_requested: int = 0  # as the history counts: the block's size where the request is unknown

    @property
    def rounding_bytes(self) -> int | None:
        """Return the bytes allocated beyond what was requested; None where the snapshot does not say."""
        return None if self.requested is None else self.allocated_bytes - self.requested

    @property
    def stranded_bytes(self) -> int:
        """Return the free bytes that cannot go back to the device, because their segment also has live blocks."""
        return self.inactive_bytes - self.releasable_bytes - self.private_free_bytes

    @property
    def private_pools(self) -> tuple[PrivatePool, ...]:
        rows = sorted(self.pools.items(), key=lambda item: -item[1][0])[:_MOST_POOLS]
        return tuple(PrivatePool(pool=name, reserved_bytes=r, allocated_bytes=a) for name, (r, a) in rows)


@dataclass(frozen=True, slots=True)
class _Segment:
    where: str
    address: int
    total: int
    pool: str
    page_bytes: int | None


def blocks_by_device(snapshot: dict[Any, Any], stacks: Stacks) -> dict[int, Blocks]:
    """Return the sums of every device with a segment. SnapshotFormatError names the place."""
    found: dict[int, Blocks] = {}
    for number, value in enumerate(sequence(snapshot.get("segments"), "segments")):
        where = f"segments[{number}]"
        entry = mapping(value, where)
        device = found.setdefault(optional_size(entry, "device", where) or 0, Blocks())
        _add(device, entry, _segment(entry, where), stacks)
    return found


def held_blocks(snapshot: dict[Any, Any], device: int) -> Iterator[tuple[int, int, int]]:
    """Yield address, bytes and stream of every block of a device that is not free."""
    for number, value in enumerate(sequence(snapshot.get("segments"), "segments")):
        where = f"segments[{number}]"
        entry = mapping(value, where)
        if (optional_size(entry, "device", where) or 0) != device:
            continue
        stream = optional_size(entry, "stream", where) or 0
        for address, num_bytes, state, _, _ in _blocks(entry, _segment(entry, where)):
            if state != INACTIVE:
                yield address, num_bytes, stream


def _segment(entry: dict[Any, Any], where: str) -> _Segment:
    kind = text(entry.get("segment_type"))
    return _Segment(
        where=where,
        address=size(entry, "address", where),
        total=size(entry, "total_size", where),
        pool=_pool(entry.get("segment_pool_id"), where),
        page_bytes=_PAGE_BYTES.get(kind, 20 * MIB) if entry.get("is_expandable") is True else None,
    )


def _pool(value: object, where: str) -> str:
    """Return the pool's name; empty for the default pool, the only pool in snapshots without names."""
    if value is None:
        return ""
    parts = sequence(value, f"{where}.segment_pool_id")
    if len(parts) != 2 or any(type(part) is not int or not 0 <= part < 2**63 for part in parts):
        raise SnapshotFormatError(f"{where}.segment_pool_id is not a pair of whole numbers")
    return "" if tuple(parts) == _DEFAULT_POOL else f"({parts[0]}, {parts[1]})"


def _add(device: Blocks, entry: dict[Any, Any], segment: _Segment, stacks: Stacks) -> None:
    active, free = 0, list[tuple[int, int]]()
    allocated = 0
    for address, num_bytes, state, block, where in _blocks(entry, segment):
        device.num_blocks += 1
        if state == INACTIVE:
            free.append((address, num_bytes))
            continue
        active += num_bytes
        if state == ALLOCATED:
            allocated += num_bytes
            _count(device, num_bytes, block, where, stacks)
    device.num_segments += 1
    device.reserved_bytes += segment.total
    device.allocated_bytes += allocated
    device.pending_bytes += active - allocated
    device.has_expandable_segments = device.has_expandable_segments or segment.page_bytes is not None
    _count_free(device, segment, free, is_empty=active == 0)
    if segment.pool:
        sums = device.pools.setdefault(segment.pool, [0, 0])
        sums[0] += segment.total
        sums[1] += allocated


def _blocks(entry: dict[Any, Any], segment: _Segment) -> Iterator[tuple[int, int, str, dict[Any, Any], str]]:
    """Yield address, bytes, state, the block and its place. Blocks of old releases have no address but are in order."""
    address = segment.address
    for number, value in enumerate(sequence(entry.get("blocks"), f"{segment.where}.blocks")):
        where = f"{segment.where}.blocks[{number}]"
        block = mapping(value, where)
        num_bytes, state = size(block, "size", where), word(block, "state", where)
        if state not in (ALLOCATED, INACTIVE) and state not in PENDING:
            raise SnapshotFormatError(f"{where}.state is {text(state)!r}, expected active_* or inactive")
        given = optional_size(block, "address", where)
        address = address if given is None else given
        yield address, num_bytes, state, block, where
        address += num_bytes
    if address > segment.address + segment.total:
        raise SnapshotFormatError(f"{segment.where}: its blocks reach beyond its end")


def _count(device: Blocks, num_bytes: int, block: dict[Any, Any], where: str, stacks: Stacks) -> None:
    owner = stacks.owner(block.get("frames"))
    live = device.live.setdefault(owner, Live())
    live.num_bytes += num_bytes
    live.count += 1
    requested = optional_size(block, "requested_size", where)
    if requested is None:
        device.requested = None
    elif device.requested is not None:
        device.requested += requested
    device.as_requested += num_bytes if requested is None else requested


def _count_free(device: Blocks, segment: _Segment, free: list[tuple[int, int]], *, is_empty: bool) -> None:
    total = sum(num_bytes for _, num_bytes in free)
    device.inactive_bytes += total
    if segment.pool:
        device.private_free_bytes += total
        return
    device.largest_free_bytes = max(device.largest_free_bytes, max((num_bytes for _, num_bytes in free), default=0))
    if segment.page_bytes is not None:
        device.releasable_bytes += sum(_whole_pages(segment, at, num_bytes) for at, num_bytes in free)
    elif is_empty:
        device.releasable_bytes += total


def _whole_pages(segment: _Segment, address: int, num_bytes: int) -> int:
    """Return the bytes of pages that are wholly inside a free block; pages start at the mapped range."""
    page = segment.page_bytes or 1
    begin = address - segment.address
    first, last = -(-begin // page), (begin + num_bytes) // page
    return max(0, last - first) * page
