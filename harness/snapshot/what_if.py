"""Replays the history of a snapshot under other settings of torch's allocator."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from harness.errors import BadRequestError
from harness.predict.allocator_replay import Event, fits_bytes, replayed
from harness.predict.allocator_settings import MIN_BLOCK_BYTES, AllocatorSettings, settings_of
from harness.snapshot.blocks import held_blocks
from harness.snapshot.fields import SnapshotFormatError, mapping, optional_size, sequence, size, text, word
from harness.snapshot.requests import RESERVING
from harness.snapshot.stacks import Stacks
from harness.snapshot.values import DeviceMemory, FirstFailure, Question, WhatIf, WhatIfRow
from harness.units import GIB, counted

_ASSUMED_DEVICE_BYTES = 80 * GIB  # it decides only how long an expandable range is, and what a memory fraction means
_MOST_GIB = 1 << 20
Entries = Sequence[tuple[str, dict[Any, Any], str]]


class _History(NamedTuple):
    """Requests from an empty device. ``num_before``: blocks that were there when the history began."""

    events: list[Event]
    num_before: int
    num_unknown_frees: int


def question_of(settings: Sequence[str], device_gib: float | None) -> Question | None:
    """Return what is asked, None for nothing. BadRequestError for settings that torch refuses, and impossible sizes."""
    if not settings and device_gib is None:
        return None
    for each in settings:
        settings_of(each, where="--what_if")
    if device_gib is not None and not 0 < device_gib < _MOST_GIB:
        raise BadRequestError(f"--device_gib {device_gib:g}: no size of a device in GiB", remedy="e.g. --device_gib 80")
    return Question(settings=tuple(settings), device_bytes=None if device_gib is None else int(device_gib * GIB))


def answered(content: dict[Any, Any], device: DeviceMemory, question: Question) -> WhatIf:
    """Return what the device's history takes under each setting. SnapshotFormatError if it has no history."""
    entries = list(_entries(content, device.device))
    if not any(action == "alloc" for action, _, _ in entries):
        remedy = "record one with torch.cuda.memory._record_memory_history()"
        raise SnapshotFormatError(f"it has no history of requests to replay; {remedy}")
    recorded, notes = _recorded(content)
    live = {address: (num_bytes, stream) for address, num_bytes, stream in held_blocks(content, device.device)}
    history = _history(_undone(live, entries), entries)
    asked = tuple(dict.fromkeys((recorded, *question.settings)))
    return WhatIf(
        device_bytes=question.device_bytes,
        num_requests=sum(event.num_bytes is not None for event in history.events) - history.num_before,
        recorded_reserved_bytes=_recorded_peak(device.reserved_bytes, entries),
        rows=tuple(_row(history, entries, each, question.device_bytes) for each in asked),
        notes=(*notes, *_notes(history, device), *(note for each in asked if (note := settings_of(each).inert))),
    )


def _entries(content: dict[Any, Any], device: int) -> Iterator[tuple[str, dict[Any, Any], str]]:
    """Yield action, entry and place of every event of a device."""
    traces = sequence(content.get("device_traces") or (), "device_traces")
    for number, value in enumerate((traces[device] or ()) if device < len(traces) else ()):
        where = f"device_traces[{device}][{number}]"
        entry = mapping(value, where)
        yield word(entry, "action", where), entry, where


def _recorded(content: dict[Any, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the settings that the snapshot names, and a note where it names none or some that cannot be replayed."""
    named = content.get("allocator_settings")
    value = named.get("PYTORCH_CUDA_ALLOC_CONF") if isinstance(named, dict) else None
    if not isinstance(value, str):
        return "", ("The snapshot does not name its settings: the first row has torch's defaults.",)
    settings = text(value)
    try:
        settings_of(settings, where="the snapshot's PYTORCH_CUDA_ALLOC_CONF")
    except BadRequestError as error:
        return "", (f"{error.message}: the first row has torch's defaults.",)
    return settings, ()


def _undone(live: dict[int, tuple[int, int]], entries: Entries) -> dict[int, tuple[int, int]]:
    """Return bytes and stream of the blocks before the first event: those at the end, every event undone."""
    for action, entry, where in reversed(entries):
        if action == "alloc":
            live.pop(size(entry, "addr", where), None)
        elif action == "free_completed":
            rounded = -(-max(size(entry, "size", where), 1) // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES
            live[size(entry, "addr", where)] = rounded, optional_size(entry, "stream", where) or 0
    return live


def _history(before: dict[int, tuple[int, int]], entries: Entries) -> _History:
    """Return the requests: what was there when the history began in order of address, then what it has.

    A request that failed is asked again and ends at once. A block ends when its last stream was done with it.
    """
    events, keys, num_unknown = list[Event](), dict[int, int](), 0
    for address, (num_bytes, stream) in sorted(before.items()):
        keys[address] = len(events)
        events.append(Event(len(events), num_bytes, stream))
    for action, entry, where in entries:
        if action in ("alloc", "oom"):
            key = len(events)
            events.append(Event(key, size(entry, "size", where), optional_size(entry, "stream", where) or 0))
            if action == "alloc":
                keys[size(entry, "addr", where)] = key
            else:
                events.append(Event(key, None))
        elif action == "free_completed":
            ended = keys.pop(size(entry, "addr", where), None)
            num_unknown += ended is None
            events += [] if ended is None else [Event(ended, None)]
    return _History(events, len(before), num_unknown)


def _recorded_peak(reserved: int, entries: Entries) -> int:
    """Return the most reserved bytes in the history; ``reserved``: at its end."""
    peak = reserved
    for action, entry, where in reversed(entries):
        reserved -= RESERVING[action] * size(entry, "size", where) if action in RESERVING else 0
        peak = max(peak, reserved)
    return peak


def _row(history: _History, entries: Entries, asked: str, device_bytes: int | None) -> WhatIfRow:
    settings, total = settings_of(asked), max(_ASSUMED_DEVICE_BYTES, device_bytes or 0)
    if device_bytes is not None and settings.memory_fraction is not None:
        total = device_bytes
    free = replayed(history.events, settings, total_bytes=total)
    return WhatIfRow(
        settings=asked,
        allocated_bytes=free.peak_allocated_bytes,
        reserved_bytes=free.peak_reserved_bytes,
        fits_bytes=fits_bytes(history.events, settings, free, total),
        failure=None if device_bytes is None else _failure(history, entries, settings, device_bytes),
    )


def _failure(
    history: _History, entries: Entries, settings: AllocatorSettings, device_bytes: int
) -> FirstFailure | None:
    """Return the first request that fails on the device; number 0 and no site for a block from before the history."""
    outcome = replayed(history.events, settings, device_bytes, device_bytes)
    if outcome.failed is None:
        return None
    number = sum(event.num_bytes is not None for event in history.events[: outcome.failed + 1]) - history.num_before
    frames = (entry.get("frames") for action, entry, _ in entries if action in ("alloc", "oom"))
    owner = Stacks().owner(next(islice(frames, number - 1, None), None)) if number > 0 else None
    return FirstFailure(
        number=max(0, number),
        request_bytes=history.events[outcome.failed].num_bytes or 0,
        allocated_then_bytes=outcome.allocated_bytes,
        reserved_then_bytes=outcome.reserved_bytes,
        module=owner.module if owner else "",
        site=owner.site if owner else "",
    )


def _notes(history: _History, device: DeviceMemory) -> Iterator[str]:
    if history.num_before:
        blocks = counted(history.num_before, "block")
        yield (
            f"The history begins in mid-run with {blocks}: earlier peaks and the gaps between them are unknown. "
            "The replay packs them, so Reserved and Fits in may be too low."
        )
    if history.num_unknown_frees:
        yield f"{counted(history.num_unknown_frees, 'free')} in the history without a request: some events are missing."
    if device.private_pools:
        yield "A history does not name private pools: their blocks are replayed outside them, and figures may be low."
