"""The history of a rank's first steps: its requests at their addresses in torch's allocator, and who makes them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from harness.predict.allocator import Allocator
from harness.predict.allocator_blocks import Device, Segment
from harness.predict.allocator_replay import Cycle, Request
from harness.predict.allocator_settings import settings_of
from harness.predict.rank_parts import Label


class Steps(NamedTuple):
    """A rank's first steps. ``labels``: who makes each request, by its key: part or module, layer, micro-batch.

    ``marks``: the first event of each phase, its step and name. ``num_left``: micro-batches neither composed nor
    repeated. ``gradients``: keys of what DDP's stream reads last. ``waits``: events before which the host waits for
    all streams. ``rest``: of ``peak_bytes`` what :meth:`beside` added.
    """

    events: tuple[Request, ...]
    labels: dict[int, Label]
    marks: tuple[tuple[int, int, str], ...]
    cycles: tuple[Cycle, ...] = ()
    num_left: int = 0
    gradients: frozenset[int] = frozenset()
    waits: tuple[int, ...] = ()
    peak_bytes: int = 0
    rest: int = 0

    def beside(self, num_bytes: int) -> "Steps":
        """Return the same steps after a block that stays, where it has any bytes."""
        if num_bytes <= 0:
            return self
        key = min(self.labels, default=0) - 1
        return self._replace(
            events=((key, num_bytes, 0), *self.events),
            labels={**self.labels, key: ("overhead", "beside the requests")},
            marks=tuple((at and at + 1, step, phase) for at, step, phase in self.marks),
            cycles=tuple(each._replace(begin=each.begin + 1, end=each.end + 1) for each in self.cycles),
            waits=tuple(at + 1 for at in self.waits),
            peak_bytes=self.peak_bytes + num_bytes,
            rest=num_bytes,
        )

    def late(self) -> tuple[Request, ...]:
        """Return the events where DDP's stream is always behind: what it reads ends when the host waits for it."""
        done, events, gradients = list[Request](), self.events, self.gradients
        for begin, end in pairwise((0, *self.waits, len(events)) if gradients else (0, len(events))):
            behind = [event for event in events[begin:end] if event[1] is None and event[0] in gradients]
            done += [event for event in events[begin:end] if event[1] or event[0] not in gradients] + behind
        return tuple(done)


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
    """All rows from an empty device on. ``marks``: as in `Steps`, by rows. ``begin``: the first row of the last step.

    ``segments``: at the end; ``there``: the rows of requests that are alive then, by address.
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
