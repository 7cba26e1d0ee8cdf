"""Room and permission on the disk: asked before a run, and reported when a run loses them."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import RunFailedError
from harness.units import MIB, format_bytes

_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
_NOT_PERMITTED = (errno.EACCES, errno.EPERM, errno.EROFS)


def why_unwritable(path: Path) -> str:
    """Return why nothing can be written at ``path``; empty if it can. Leaves no file behind."""
    try:
        if path.exists() and not path.is_dir():
            return "" if os.access(path, os.W_OK) else "no permission"
        above = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        with tempfile.TemporaryFile(dir=above):
            return ""
    except OSError as error:
        return error.strerror or str(error)


NEEDED_BYTES = 64 * MIB
FULL_BYTES = 1 * MIB


def require_room(folder: Path, free_bytes: int) -> None:
    """Raise RunFailedError if less than 64 MiB is free: a run that cannot write its log dies without an error."""
    if free_bytes < NEEDED_BYTES:
        raise RunFailedError(
            f"disk full: {format_bytes(free_bytes)} free for {folder}, {format_bytes(NEEDED_BYTES)} needed",
            remedy="free some space; a new run or sweep can go elsewhere with --results_dir",
        )


def is_full_error(error: OSError) -> bool:
    """Return whether the error means that the file system or the user's quota is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def disk_faults_reported(folder: Path, then: str = "mbr-perf stopped the run") -> Iterator[None]:
    """Turn a full disk, and files lost or closed in ``folder``, into RunFailedError that ends with ``then``."""
    try:
        yield
    except OSError as error:
        file = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None
        if is_full_error(error):
            raise disk_full(folder, file) from error
        at = file or folder
        above = [folder, *(each for each in reversed(at.parents) if folder in each.parents)]
        is_here = at == folder or folder in at.parents
        if is_here and error.errno in _MISSING and (gone := [each for each in above if not each.is_dir()]):
            raise deleted(gone[0], then) from error
        if is_here and error.errno in _NOT_PERMITTED:
            raise RunFailedError(
                f"{at}: mbr-perf can no longer read or write it: {error.strerror}; {then}",
                remedy="give this user read and write permission, and run again",
            ) from error
        raise


def disk_full(folder: Path, file: Path | None) -> RunFailedError:
    """Return the error for a full disk. ``file`` None: the write named no file, which is then one of ``folder``."""
    return RunFailedError(
        f"disk full: cannot write {file or f'in {folder}'}",
        remedy=f"free space on the file system of {file or folder}; mbr-perf keeps the files written so far",
    )


def require_kept(*wanted: Path, then: str = "mbr-perf stopped the run") -> None:
    """Raise RunFailedError if one of the folders of a run no longer exists. ``then``: what mbr-perf did."""
    for folder in wanted:
        if not folder.is_dir():
            raise deleted(folder, then)


def require_writable(folder: Path) -> None:
    """Raise RunFailedError if nothing can be written in a folder of a run that is about to start."""
    if why := why_unwritable(folder):
        raise RunFailedError(
            f"{folder}: mbr-perf cannot write here: {why}; nothing was started",
            remedy="make the folder writable for this user, and run again",
        )


def deleted(folder: Path, then: str = "mbr-perf stopped the run") -> RunFailedError:
    """Return the error for a folder that disappeared under a run. ``then``: what mbr-perf did."""
    return RunFailedError(
        f"{folder}: the folder was deleted or replaced while mbr-perf was using it; {then}",
        remedy="run again, and exclude the results folder from clean-up jobs",
    )


def free_bytes(folder: Path) -> int:
    """Return the bytes that this user can still write in ``folder``; 0 if no inode is left."""
    status = os.statvfs(folder)
    out_of_inodes = status.f_files > 0 and status.f_favail == 0
    return 0 if out_of_inodes else status.f_bavail * status.f_frsize
