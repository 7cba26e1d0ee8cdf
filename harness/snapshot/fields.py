"""Reads the fields and annotations of a snapshot."""

from collections.abc import Iterator, Sequence
from typing import Any

_LARGEST = 2**63
_LONGEST_TEXT = 400  # characters


class SnapshotFormatError(ValueError):
    """A pickle of plain values without the layout of torch's snapshots."""


def mapping(value: object, where: str) -> dict[Any, Any]:
    """Return ``value`` if it is a dict. SnapshotFormatError for anything else."""
    if not isinstance(value, dict):
        raise SnapshotFormatError(f"{where} is {_kind(value)}, expected a dict")
    return value


def sequence(value: object, where: str) -> Sequence[Any]:
    """Return ``value`` if it is a list or tuple. SnapshotFormatError for anything else."""
    if not isinstance(value, (list, tuple)):
        raise SnapshotFormatError(f"{where} is {_kind(value)}, expected a list")
    return value


def size(entry: dict[Any, Any], name: str, where: str) -> int:
    """Return a whole number of at least 0. SnapshotFormatError if it is absent or anything else."""
    value = entry.get(name)
    if type(value) is int and 0 <= value < _LARGEST:
        return value
    raise SnapshotFormatError(f"{where}.{name} is {_kind(value)}, expected a whole number of at least 0")


def optional_size(entry: dict[Any, Any], name: str, where: str) -> int | None:
    """Do as :func:`size`; return None if it is absent."""
    return None if entry.get(name) is None else size(entry, name, where)


def word(entry: dict[Any, Any], name: str, where: str) -> str:
    """Return a text. SnapshotFormatError if it is absent or anything else."""
    value = entry.get(name)
    if isinstance(value, str):
        return value
    raise SnapshotFormatError(f"{where}.{name} is {_kind(value)}, expected text")


def text(value: object) -> str:
    """Return ``value`` as short text that can be printed anywhere; empty if it is not text."""
    if not isinstance(value, str):
        return ""
    return "".join(char if char.isprintable() else "?" for char in value[:_LONGEST_TEXT])


def _kind(value: object) -> str:
    if value is None:
        return "absent"
    if type(value) is int and abs(value) < _LARGEST:
        return str(value)
    return f"of type {type(value).__name__}" if type(value) is not int else "a number that is far too large"


_MOST = 200  # spans; the longest are kept
Span = tuple[str, int, int]


def spans_by_device(snapshot: dict[Any, Any]) -> dict[int, tuple[Span, ...]]:
    """Return name, begin and end (microseconds) of the spans of each device, in order of time. SnapshotFormatError.

    An end belongs to the youngest open begin of its name; a span without an end goes on to the last annotation.
    """
    entries = [*sequence(snapshot.get("external_annotations") or (), "external_annotations"), *_older(snapshot)]
    closed: dict[int, list[Span]] = {}
    open_: dict[tuple[int, str], list[int]] = {}
    latest = 0
    for number, value in enumerate(entries):
        where = f"external_annotations[{number}]"
        entry = mapping(value, where)
        time, device = optional_size(entry, "time_us", where), _device(entry)
        if time is None:
            continue
        key, latest = (device, text(entry.get("name"))), max(latest, time)
        if entry.get("stage") == "START":
            open_.setdefault(key, []).append(time)
        elif open_.get(key):
            closed.setdefault(device, []).append((key[1], open_[key].pop(), time))
    for (device, name), begins in open_.items():
        closed.setdefault(device, []).extend((name, begin, latest) for begin in begins)
    return {device: _longest(spans) for device, spans in closed.items()}


def _older(snapshot: dict[Any, Any]) -> Iterator[dict[str, object]]:
    """Yield annotations that some releases of torch write among the events, in the layout of the other releases."""
    for device, events in enumerate(sequence(snapshot.get("device_traces") or (), "device_traces")):
        for event in sequence(events, f"device_traces[{device}]"):
            if isinstance(event, dict) and event.get("action") == "user_defined":
                frames = event.get("frames")
                frame = frames[0] if isinstance(frames, list) and frames and isinstance(frames[0], dict) else {}
                stage, name = frame.get("name"), frame.get("filename")
                yield {"stage": stage, "name": name, "device": device, "time_us": event.get("time_us")}


def _device(entry: dict[Any, Any]) -> int:
    value = entry.get("device")
    return value if type(value) is int and 0 <= value < 1024 else 0


def _longest(spans: Sequence[Span]) -> tuple[Span, ...]:
    kept = sorted(spans, key=lambda span: span[1] - span[2])[:_MOST]
    return tuple(sorted(kept, key=lambda span: span[1:]))
