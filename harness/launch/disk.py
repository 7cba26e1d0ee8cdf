"""Room on the file system of a run folder."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import RunFailedError
from harness.units import MIB, format_bytes

NEEDED_BYTES = 64 * MIB
FULL_BYTES = 1 * MIB


def require_room(folder: Path, free_bytes: int) -> None:
    """RunFailedError when less than 64 MiB is free: a run without room for its log dies without a word."""
    if free_bytes < NEEDED_BYTES:
        raise RunFailedError(
            f"disk full: {format_bytes(free_bytes)} free for {folder}, {format_bytes(NEEDED_BYTES)} needed",
            remedy="free some space; a new run or sweep can go elsewhere with --results_dir",
        )


def is_full(free_bytes: int) -> bool:
    """Whether writes are failing, or about to."""
    return free_bytes < FULL_BYTES


def says_full(error: OSError) -> bool:
    """Whether the error means that the file system, or this user's share of it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def full_disk_told(folder: Path) -> Iterator[None]:
    """RunFailedError where the block finds the disk full; other errors pass."""
    try:
        yield
    except OSError as error:
        if not says_full(error):
            raise
        raise RunFailedError(
            f"disk full: nothing more can be written in {folder}", remedy="free some space; what was written is kept"
        ) from error


def free_bytes(folder: Path) -> int:
    """Bytes that this user can still write in ``folder``; 0 when there is no inode left."""
    status = os.statvfs(folder)
    out_of_inodes = status.f_files > 0 and status.f_favail == 0
    return 0 if out_of_inodes else status.f_bavail * status.f_frsize
