"""Replays the recorded history of a device: levels over time, the peak and its holders, the failed request."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.snapshot.blocks import Blocks, Live
from harness.snapshot.fields import SnapshotFormatError, mapping, optional_size, size, word
from harness.snapshot.stacks import Owner, Stacks
from harness.snapshot.values import FailedRequest, Levels, Phase

NUM_POINTS = 600  # of a timeline; a picture is 760 pixels wide
_MOST_BYTES = 2**62
_INCOMPLETE = "its history does not add up to the allocated memory: some kinds of events are missing (skip_actions)"
BEFORE = Owner("before the history", "")
_RESERVING = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_CHANGES = frozenset({*_RESERVING, "alloc", "free_requested", "free_completed"})


@dataclass
class History:
    """The history of one device; empty where none was recorded. ``problem``: why it has no levels."""

    levels: Levels | None = None
    failure: FailedRequest | None = None
    num_failures: int = 0
    at_peak: dict[Owner, Live] | None = None
    problem: str = ""


@dataclass
class _Steps:
    """Levels after each event, relative to the beginning. ``time_us`` is empty where one event has no time."""

    allocated: "array[int]" = field(default_factory=lambda: array("q"))
    reserved: "array[int]" = field(default_factory=lambda: array("q"))
    time_us: "array[int]" = field(default_factory=lambda: array("q"))
    failures: list[tuple[int, int, int | None]] = field(default_factory=list)
    last_change: int = -1


def play(
    entries: Sequence[Any], blocks: Blocks, phases: Sequence[tuple[str, int, int]], stacks: Stacks, where: str
) -> History:
    """Replay ``entries`` backwards from the end, where ``blocks`` gives the levels.

    Histories are rings: allocations before the first entry are missing. ``phases`` are name, begin and end in
    microseconds. SnapshotFormatError, with the place.
    """
    if not entries:
        return History()
    requested = any(e.get("action") == "free_requested" for e in entries if isinstance(e, dict))
    freeing = "free_requested" if requested else "free_completed"
    steps = _steps(entries, freeing, where)
    standing = sum(num_bytes for num_bytes, _ in blocks.standing.values())
    base = standing - steps.allocated[-1], blocks.reserved - steps.reserved[-1]
    failure = _failure(steps, base)
    if base[0] + min(steps.allocated) < 0:
        sure = failure if failure and failure.is_now else None
        return History(failure=sure, num_failures=len(steps.failures), problem=_INCOMPLETE)
    peak = max(range(len(entries)), key=steps.allocated.__getitem__)
    return History(
        levels=_levels(steps, base, peak, phases),
        failure=failure,
        num_failures=len(steps.failures),
        at_peak=_holders(entries, freeing, peak, blocks, stacks),
    )


def _steps(entries: Sequence[Any], freeing: str, where: str) -> _Steps:
    steps, allocated, reserved = _Steps(), 0, 0
    for number, value in enumerate(entries):
        at = f"{where}[{number}]"
        entry = mapping(value, at)
        action = word(entry, "action", at)
        if action == "alloc":
            allocated += size(entry, "size", at)
        elif action == freeing:
            allocated -= size(entry, "size", at)
        elif action in _RESERVING:
            reserved += _RESERVING[action] * size(entry, "size", at)
        elif action == "oom":
            steps.failures.append((number, size(entry, "size", at), optional_size(entry, "device_free", at)))
        if action in _CHANGES:
            steps.last_change = number
        if max(abs(allocated), abs(reserved)) >= _MOST_BYTES:
            raise SnapshotFormatError(f"{at}: the sizes up to there add up to more than any device has")
        steps.allocated.append(allocated)
        steps.reserved.append(reserved)
        time = optional_size(entry, "time_us", at)
        if time is not None:
            steps.time_us.append(time)
    return steps


def _failure(steps: _Steps, base: tuple[int, int]) -> FailedRequest | None:
    if not steps.failures:
        return None
    number, request, free = steps.failures[-1]
    return FailedRequest(
        request_bytes=request,
        device_free_bytes=free,
        allocated_then_bytes=max(0, base[0] + steps.allocated[number]),
        reserved_then_bytes=max(0, base[1] + steps.reserved[number]),
        is_now=steps.last_change < number,
    )


def _levels(steps: _Steps, base: tuple[int, int], peak: int, phases: Sequence[tuple[str, int, int]]) -> Levels:
    count = len(steps.allocated)
    timed = len(steps.time_us) == count and steps.time_us[-1] > steps.time_us[0]
    start = steps.time_us[0] if timed else 0
    span = steps.time_us[-1] - start if timed else count
    num = min(NUM_POINTS, count)
    allocated, reserved = [0] * num, [0] * num
    last = -1
    for number in range(count):
        at = (steps.time_us[number] - start if timed else number) * num // (span + 1)
        at = min(max(at, last, 0), num - 1)  # clocks of several threads may be a little out of order
        for place in range(max(last, 0), at):  # the level at the end of the last interval stays
            _raise(allocated, reserved, place + 1, steps, base, number - 1)
        _raise(allocated, reserved, at, steps, base, number)
        last = at
    unit = 1e6 if timed else 1
    return Levels(
        clock="s" if timed else "events",
        interval=max(span, 1) / num / unit,
        allocated_bytes=tuple(allocated),
        reserved_bytes=tuple(reserved),
        peak_allocated_bytes=max(allocated),
        peak_reserved_bytes=max(reserved),
        peak_at=(max(0, steps.time_us[peak] - start) if timed else peak) / unit,
        num_events=count,
        phases=_phases(phases, start, start + span) if timed else (),
    )


def _raise(
    allocated: list[int], reserved: list[int], place: int, steps: _Steps, base: tuple[int, int], number: int
) -> None:
    allocated[place] = max(allocated[place], base[0] + steps.allocated[number])
    reserved[place] = max(reserved[place], base[1] + steps.reserved[number])


def _phases(phases: Sequence[tuple[str, int, int]], start: int, end: int) -> tuple[Phase, ...]:
    inside = [(name, max(begin, start), min(stop, end)) for name, begin, stop in phases if begin < end and stop > start]
    return tuple(Phase(name=n, start_s=(b - start) / 1e6, end_s=(e - start) / 1e6) for n, b, e in inside)


def _holders(entries: Sequence[Any], freeing: str, peak: int, blocks: Blocks, stacks: Stacks) -> dict[Owner, Live]:
    """Return the holders at the peak: blocks that the history allocated by then, and blocks from before it began."""
    live: dict[Any, tuple[int, Any]] = {}
    met: set[Any] = set()
    older: list[tuple[int, Owner]] = []
    for number, entry in enumerate(entries):
        action, address = entry.get("action"), entry.get("addr")
        if not isinstance(address, int):
            continue
        if action == "alloc":
            met.add(address)
            if number <= peak:
                live[address] = (entry["size"], entry)
        elif action == freeing:
            if address not in met and number > peak:
                older.append((entry["size"], BEFORE))
            met.add(address)
            if number <= peak:
                live.pop(address, None)
    older.extend(held for address, held in blocks.standing.items() if address not in met)
    found: dict[Owner, Live] = {}
    for num_bytes, owner in [*older, *((n, stacks.owner(e.get("frames"))) for n, e in live.values())]:
        held = found.setdefault(owner, Live())
        held.num_bytes += num_bytes
        held.count += 1
    return found
