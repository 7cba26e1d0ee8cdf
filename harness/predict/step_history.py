"""The history of a rank's first steps: its requests at their addresses in torch's allocator, and who makes them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from harness.predict.allocator import Allocator
from harness.predict.allocator_blocks import Device, Segment
from harness.predict.allocator_settings import settings_of
from harness.predict.rank_events import Steps
from harness.predict.rank_parts import Label

_SEGMENTS = {False: ("segment_alloc", "segment_free"), True: ("segment_map", "segment_unmap")}
_CHANGES = {"alloc": 1, "free_completed": -1}
_CHANGES_OF_SEGMENTS = {word: sign for words in _SEGMENTS.values() for word, sign in zip(words, (1, -1), strict=True)}


class Entry(NamedTuple):
    """A row of the history. ``action``: a word of torch's recorder; ``num_bytes`` as the allocator rounds ``asked``."""

    action: str
    address: int
    num_bytes: int
    stream: int = 0
    label: Label = ()
    asked: int = 0


class Moment(NamedTuple):
    """Bytes behind a row; ``groups``: the allocated ones by part or module."""

    reserved: int
    allocated: int
    groups: dict[str, int]


@dataclass(frozen=True)
class StepHistory:
    """All rows from an empty device on. ``marks``: the first row of each phase, with its step and name, as in `Steps`.

    ``segments``: at the end; ``there``: the rows of requests that are alive at the end, by address. ``conf``: the
    allocator's settings. ``begin``: the first row of the last step.
    """

    entries: tuple[Entry, ...]
    marks: tuple[tuple[int, int, str], ...]
    segments: tuple[Segment, ...]
    there: dict[int, Entry]
    conf: str

    @property
    def begin(self) -> int:
        return next(at for at, step, _ in self.marks if step == self.marks[-1][1])

    def moments(self) -> Iterator[Moment]:
        """Yield what is held behind each row; the groups are the same dictionary each time."""
        groups, allocated, reserved = Counter[str](), 0, 0
        for action, _, num_bytes, _, label, _ in self.entries:
            reserved += _CHANGES_OF_SEGMENTS.get(action, 0) * num_bytes
            if change := _CHANGES.get(action, 0) * num_bytes:
                allocated += change
                groups[label[0]] += change
            yield Moment(reserved, allocated, groups)


def step_history(steps: Steps, conf: str, total_bytes: int) -> StepHistory:
    """Replay the steps. OutOfDeviceMemoryError where a memory fraction refuses a request."""
    settings = settings_of(conf)
    allocator = Allocator(settings, Device(total_bytes=total_bytes))
    entries, firsts, there = list[Entry](), list[int](), dict[int, Entry]()
    for key, num_bytes, stream in steps.events:
        firsts.append(len(entries))
        allocated, num_changes = allocator.allocated, len(allocator.changes)
        if num_bytes is None:
            row = there.pop(key)
            allocator.free(row.address)
            entries += [row._replace(action=action) for action in ("free_requested", "free_completed")]
            continue
        address = allocator.malloc(num_bytes, stream)
        for start, size in allocator.changes[num_changes:]:
            entries.append(Entry(_SEGMENTS[settings.expandable_segments][size < 0], start, abs(size), stream))
        there[key] = Entry("alloc", address, allocator.allocated - allocated, stream, steps.labels[key], num_bytes)
        entries.append(there[key])
    firsts.append(len(entries))
    marks = tuple((at and firsts[at], step, phase) for at, step, phase in steps.marks)
    alive = {row.address: row for row in there.values()}
    return StepHistory(tuple(entries), marks, tuple(allocator.segments()), alive, conf)
