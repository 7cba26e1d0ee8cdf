"""Folders of results: made under a name that says when and what, found again by a part of it, and the room they have."""

import errno
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import BadRequestError, RunFailedError
from harness.units import MIB, format_bytes


def new_folder(parent: Path, label: str, inner: Iterable[str] = (), *, now: datetime | None = None) -> Path:
    """Make ``<parent>/<UTC time>-<label>-<8 hex>`` with the folders ``inner``; the name is the id of what it will hold.

    Two of one label in one second get two folders. BadRequestError where one cannot be made.
    """
    time = (now or datetime.now(UTC)).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    name = re.sub(r"[^A-Za-z0-9._]+", "-", label).strip("-.") or parent.name.removesuffix("s")
    folder = parent / f"{time}-{name}-{secrets.token_hex(4)}"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o750)
        for each in inner:
            (folder / each).mkdir(mode=0o750)
    except OSError as error:
        raise BadRequestError(
            f"{folder}: cannot be made: {error.strerror}", remedy="name a writable folder with --results_dir"
        ) from error
    return folder


def why_unwritable(path: Path) -> str:
    """Why neither a file nor a folder can be written at ``path``; empty where one can. Leaves nothing behind."""
    try:
        if path.exists() and not path.is_dir():
            return "" if os.access(path, os.W_OK) else "no permission"
        above = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        with tempfile.TemporaryFile(dir=above):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def folders(parent: Path) -> tuple[Path, ...]:
    """Folders inside, links left out, by name; none where there is no ``parent``."""
    if not parent.is_dir():
        return ()
    return tuple(sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink()))


def named(start: str, among: Iterable[Path]) -> tuple[Path, ...]:
    """Those whose name starts with ``start`` or ends with it (the eight hex digits); none for an empty one."""
    return tuple(path for path in among if start and (path.name.startswith(start) or path.name.endswith(f"-{start}")))


def folder_meant(reference: str | Path, parent: Path, kind: str, mark: str) -> Path:
    """The folder that ``reference`` means: itself, that of a file ``mark``, or one of ``parent`` as :func:`folder_named`.

    Whether it holds a ``mark`` is for the caller to look at.
    """
    path = Path(reference)
    if path.is_file() and path.name == mark:
        return path.parent
    return path if path.is_dir() else folder_named(str(reference), parent, kind)


def folder_named(start: str, parent: Path, kind: str) -> Path:
    """The one of ``parent`` that is :func:`named` so. BadRequestError, in the word ``kind``, for none or several."""
    every = folders(parent)
    found = named(start, every)
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(path.name for path in found[-5:])
        raise BadRequestError(
            f"{kind} {start!r} is ambiguous: {len(found)} {kind}s in {parent}", remedy=f"one of: {listed}"
        )
    newest = ", ".join(path.name for path in every[-3:])
    raise BadRequestError(
        f"no {kind} {start!r}: neither a path nor the start of a {kind}'s id in {parent}",
        remedy=f"newest there: {newest}" if newest else f"there are no {kind}s there yet",
    )


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
def full_disk_reported(folder: Path) -> Iterator[None]:
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
