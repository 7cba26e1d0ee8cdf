"""The segments, blocks and events of a snapshot: memory in use, memory that can go back to the device, and the rest."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from harness.snapshot.fields import SnapshotFormatError, size, text
from harness.snapshot.stacks import Owner, Stacks
from harness.snapshot.values import FailedRequest
from harness.units import MIB

ALLOCATED, PENDING, INACTIVE = "active_allocated", "active_pending_free", "inactive"
_DEFAULT_POOL = (0, 0)
# An expandable segment gives back whole pages (c10/cuda/CUDACachingAllocator.cpp: kLargeBuffer, kSmallBuffer).
_PAGE_BYTES = {"large": 20 * MIB, "small": 2 * MIB}


@dataclass
class Blocks:
    """Sums over one device's segments; see ``DeviceMemory`` for what each means."""

    num_segments: int = 0
    num_blocks: int = 0
    reserved_bytes: int = 0
    allocated_bytes: int = 0
    requested_bytes: int = 0
    pending_bytes: int = 0
    releasable_bytes: int = 0
    private_free_bytes: int = 0
    inactive_bytes: int = 0
    largest_free_bytes: int = 0
    has_expandable_segments: bool = False
    private_reserved_bytes: int = 0
    live_bytes: Counter[Owner] = field(default_factory=Counter)
    num_live: Counter[Owner] = field(default_factory=Counter)

    @property
    def rounding_bytes(self) -> int:
        return self.allocated_bytes - self.requested_bytes

    @property
    def stranded_bytes(self) -> int:
        """Return the free bytes that cannot go back to the device, because their segment also has live blocks."""
        return self.inactive_bytes - self.releasable_bytes - self.private_free_bytes


def blocks_by_device(snapshot: dict[Any, Any], stacks: Stacks) -> dict[int, Blocks]:
    """Return the sums of every device with a segment."""
    found: dict[int, Blocks] = {}
    for entry in snapshot["segments"]:
        _add(found.setdefault(size(entry, "device", 0), Blocks()), entry, stacks)
    return found


class HeldBlock(NamedTuple):
    """A block that is not free."""

    address: int
    num_bytes: int
    stream: int
    frames: object


def held_blocks(snapshot: dict[Any, Any], device: int) -> Iterator[HeldBlock]:
    """Yield every block of a device that is not free."""
    for entry in snapshot["segments"]:
        if size(entry, "device", 0) == device:
            stream = size(entry, "stream", 0)
            for address, num_bytes, state, block in _blocks(entry):
                if state != INACTIVE:
                    yield HeldBlock(address, num_bytes, stream, block.get("frames"))


def _is_private(value: Any) -> bool:
    """Return whether a segment is of a private pool; snapshots without names have none."""
    if value is None:
        return False
    first, second = value
    if type(first) is not int or type(second) is not int:
        raise SnapshotFormatError("segment_pool_id is not a pair of whole numbers")
    return (first, second) != _DEFAULT_POOL


def _add(device: Blocks, entry: Any, stacks: Stacks) -> None:
    active, allocated, free = 0, 0, list[tuple[int, int]]()
    total, is_private = size(entry, "total_size"), _is_private(entry.get("segment_pool_id"))
    for address, num_bytes, state, block in _blocks(entry):
        device.num_blocks += 1
        if state == INACTIVE:
            free.append((address, num_bytes))
            continue
        active += num_bytes
        if state == ALLOCATED:
            allocated += num_bytes
            device.requested_bytes += size(block, "requested_size")
            owner = stacks.of(block.get("frames")).owner
            device.live_bytes[owner] += num_bytes
            device.num_live[owner] += 1
    device.num_segments += 1
    device.reserved_bytes += total
    device.allocated_bytes += allocated
    device.pending_bytes += active - allocated
    device.has_expandable_segments |= entry.get("is_expandable") is True
    device.private_reserved_bytes += total * is_private
    _count_free(device, entry, free, is_private=is_private, is_empty=active == 0)


def _blocks(entry: Any) -> Iterator[tuple[int, int, str, Any]]:
    end = size(entry, "address") + size(entry, "total_size")
    for block in entry["blocks"]:
        address, num_bytes, state = size(block, "address"), size(block, "size"), block["state"]
        if state not in (ALLOCATED, PENDING, INACTIVE):
            raise SnapshotFormatError(f"a block's state is {text(state)!r}, expected active_* or inactive")
        if address + num_bytes > end:
            raise SnapshotFormatError("a segment's blocks reach beyond its end")
        yield address, num_bytes, state, block


def _count_free(device: Blocks, entry: Any, free: list[tuple[int, int]], *, is_private: bool, is_empty: bool) -> None:
    total = sum(num_bytes for _, num_bytes in free)
    device.inactive_bytes += total
    if is_private:
        device.private_free_bytes += total
        return
    device.largest_free_bytes = max(device.largest_free_bytes, max((num_bytes for _, num_bytes in free), default=0))
    if entry.get("is_expandable") is True:
        page = _PAGE_BYTES.get(text(entry.get("segment_type")), 20 * MIB)
        device.releasable_bytes += sum(_whole_pages(at - entry["address"], num_bytes, page) for at, num_bytes in free)
    elif is_empty:
        device.releasable_bytes += total


def _whole_pages(begin: int, num_bytes: int, page: int) -> int:
    first, last = -(-begin // page), (begin + num_bytes) // page
    return max(0, last - first) * page


RESERVING = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_INCOMPLETE = "its history does not add up to the allocated memory: some kinds of events are missing (skip_actions)"


def last_failure(entries: Sequence[Any], blocks: Blocks) -> tuple[FailedRequest | None, str]:
    """Return the last failed request with the levels of then, and why they are unknown."""
    is_asked = any(entry.get("action") == "free_requested" for entry in entries)
    changes = {"alloc": 1, "free_requested" if is_asked else "free_completed": -1}
    found: FailedRequest | None = None
    allocated, reserved, is_now = blocks.requested_bytes, blocks.reserved_bytes, True
    for entry in reversed(entries):
        action = entry["action"]
        if action == "oom":
            found = found or FailedRequest(
                request_bytes=size(entry, "size"),
                device_free_bytes=size(entry, "device_free"),
                allocated_then_bytes=allocated,
                reserved_then_bytes=reserved,
                is_now=is_now,
            )
        elif found is None:
            is_now = is_now and action not in (*changes, *RESERVING, "free_completed")
            allocated -= changes[action] * size(entry, "size") if action in changes else 0
            reserved -= RESERVING[action] * size(entry, "size") if action in RESERVING else 0
    if found is not None and min(allocated, reserved) < 0:
        return None, _INCOMPLETE
    return found, ""
