"""Reads the fields of a snapshot."""

from collections.abc import Sequence
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
