"""Reads the fields of a snapshot."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_LARGEST = 2**63
_LONGEST_TEXT = 400  # characters


class SnapshotFormatError(ValueError):
    """A pickle of plain values without the layout of torch's snapshots."""


@contextmanager
def torchs_layout() -> Iterator[None]:
    """Turn what reading a value of another layout raises into a SnapshotFormatError."""
    try:
        yield
    except SnapshotFormatError:
        raise
    except (TypeError, AttributeError, LookupError, ValueError) as error:
        what = f"{type(error).__name__}: {error!s:.80}".encode("ascii", "backslashreplace").decode()
        raise SnapshotFormatError(f"it does not have the layout of torch's snapshots ({what})") from error


def size(entry: Any, name: str, default: int | None = None) -> int:
    """Return a whole number of at least 0; ``default`` where it is absent. SnapshotFormatError for anything else."""
    value = entry.get(name)
    if type(value) is int and 0 <= value < _LARGEST:
        return value
    if value is None and default is not None:
        return default
    raise SnapshotFormatError(f"{name} is {str(value)[:60]!a}, expected a whole number of at least 0")


def text(value: object) -> str:
    """Return ``value`` as short text that can be printed anywhere; empty if it is not text."""
    if not isinstance(value, str):
        return ""
    return "".join(char if char.isprintable() else "?" for char in value[:_LONGEST_TEXT])
