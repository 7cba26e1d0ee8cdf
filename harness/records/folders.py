"""Folders of results: their places, names and permissions, and disk space."""

import errno
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import harness
from harness.errors import BadRequestError, RunFailedError, closest, os_errors_reported
from harness.records.launch import OF_PROCESSES
from harness.units import MIB, format_bytes

_CHECKOUT = Path(harness.__file__).parents[1]
_OF_OTHERS = 0o007
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
_NOT_PERMITTED = (errno.EACCES, errno.EPERM, errno.EROFS)


def checkout_dir() -> Path | None:
    """Return the source checkout that this package runs from; None for an installed wheel."""
    return _CHECKOUT if (_CHECKOUT / "pyproject.toml").is_file() else None


def results_dir(override: Path | None = None) -> Path:
    """Return the results folder: ``--results_dir``, the checkout's ``results``, or ``./results``."""
    if override is not None:
        return override
    checkout = checkout_dir()
    return checkout / "results" if checkout else Path("results")


@contextmanager
def closed_to_others() -> Iterator[None]:
    """Close new files of this process to other users inside the block; the group keeps the shell's permissions."""
    before = os.umask(OF_PROCESSES)  # the old umask can only be read by setting a new one
    os.umask(before | _OF_OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def new_folder(parent: Path, label: str, inner: Iterable[str] = (), *, now: datetime | None = None) -> Path:
    """Make ``<parent>/<UTC time>-<label>-<8 hex>`` with the folders ``inner``; the name is the id of its content.

    Two calls with the same label and second get two folders. BadRequestError if a folder cannot be made.
    """
    time = (now or datetime.now(UTC)).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    name = in_folder_name(label) or parent.name.removesuffix("s")
    folder = parent / f"{time}-{name}-{secrets.token_hex(4)}"
    with os_errors_reported(f"{folder}: cannot be made", "name a writable folder with --results_dir"):
        parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o750)
        for each in inner:
            (folder / each).mkdir(mode=0o750)
    return folder


def in_folder_name(label: str) -> str:
    """Return the label as :func:`new_folder` writes it between the time and the last eight digits."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", label).strip("-.")


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


def folders(parent: Path) -> tuple[Path, ...]:
    """List the folders in ``parent`` by name, without links; empty if ``parent`` does not exist."""
    if not parent.is_dir():
        return ()
    return tuple(sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink()))


def named(start: str, among: Iterable[Path]) -> tuple[Path, ...]:
    """Return the paths whose name starts or ends with ``start``; none if ``start`` is empty."""
    return tuple(path for path in among if start and (path.name.startswith(start) or path.name.endswith(f"-{start}")))


def nearest_folder(typed: str, among: Iterable[Path]) -> str:
    """``did you mean ID?`` for a slip in an id or in its last eight digits; empty where no folder is near."""
    names = [path.name for path in among]
    by_end = {name.rpartition("-")[2]: name for name in names}
    near = closest(typed, names) or [by_end[end] for end in closest(typed, by_end)]
    return f"did you mean {near[0]!r}?" if near else ""


def folder_named(start: str, parent: Path, kind: str) -> Path:
    """Return the only folder of ``parent`` that :func:`named` finds. BadRequestError for none or several."""
    every = folders(parent)
    found = named(start, every)
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(path.name for path in found[-5:])
        raise BadRequestError(
            f"{kind} {start!r} matches {len(found)} {kind}s in {parent}", remedy=f"name one of: {listed}"
        )
    newest = ", ".join(path.name for path in every[-3:])
    raise BadRequestError(
        f"no {kind} {start!r}: it is neither a path nor the start of a {kind}'s id in {parent}",
        remedy=nearest_folder(start, every)
        or (f"the newest {kind}s are: {newest}" if newest else f"this folder has no {kind}s yet"),
    )


NEEDED_BYTES = 64 * MIB
FULL_BYTES = 1 * MIB


def require_room(folder: Path, free_bytes: int) -> None:
    """Raise RunFailedError if less than 64 MiB is free: a run that cannot write its log dies without an error."""
    if free_bytes < NEEDED_BYTES:
        raise RunFailedError(
            f"disk full: {format_bytes(free_bytes)} free for {folder}, {format_bytes(NEEDED_BYTES)} needed",
            remedy="free some space; a new run or sweep can go elsewhere with --results_dir",
        )


def is_full(free_bytes: int) -> bool:
    """Return whether the disk is full or nearly full."""
    return free_bytes < FULL_BYTES


def is_full_error(error: OSError) -> bool:
    """Return whether the error means that the file system or the user's quota is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def disk_faults_reported(folder: Path, then: str = "mbr-perf stopped the run") -> Iterator[None]:
    """Turn faults of the disk inside the block into RunFailedError, which names the file or folder.

    Faults: a disk is full, wherever the file is; or in ``folder``, a folder was deleted or replaced by a file, or a
    file or folder is closed to this user. All other errors pass unchanged. ``then``: the end of the message, which says
    what mbr-perf did.
    """
    try:
        yield
    except OSError as error:
        file = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None
        fault = disk_full(folder, file) if is_full_error(error) else _access_lost(folder, file or folder, error, then)
        if fault is None:
            raise
        raise fault from error


def disk_full(folder: Path, file: Path | None) -> RunFailedError:
    """Return the error for a full disk. ``file`` None: the write named no file, which is then one of ``folder``."""
    return RunFailedError(
        f"disk full: cannot write {file or f'in {folder}'}",
        remedy=f"free space on the file system of {file or folder}; mbr-perf keeps the files written so far",
    )


def _access_lost(folder: Path, file: Path, error: OSError, then: str) -> RunFailedError | None:
    """Return the error for a missing folder or a file without permission; None for other faults and files elsewhere."""
    if file != folder and folder not in file.parents:
        return None
    parents = [folder, *(each for each in reversed(file.parents) if folder in each.parents)]
    if error.errno in _MISSING:
        return next((deleted(each, then) for each in parents if not each.is_dir()), None)
    if error.errno not in _NOT_PERMITTED:
        return None
    if why_unwritable(parents[-1]):
        return RunFailedError(
            f"{parents[-1]}: mbr-perf can no longer write here: {error.strerror}; {then}",
            remedy="make the folder writable for this user, and run again",
        )
    return RunFailedError(
        f"{file}: mbr-perf can no longer read or write this file: {error.strerror}; {then}",
        remedy="give this user read and write permission for the file, and run again",
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
    how = "replaced by a file" if folder.is_file() else "deleted"
    return RunFailedError(
        f"{folder}: the folder was {how} while mbr-perf was using it; {then}",
        remedy="run again, and exclude the results folder from clean-up jobs",
    )


def free_bytes(folder: Path) -> int:
    """Return the bytes that this user can still write in ``folder``; 0 if no inode is left."""
    status = os.statvfs(folder)
    out_of_inodes = status.f_files > 0 and status.f_favail == 0
    return 0 if out_of_inodes else status.f_bavail * status.f_frsize
