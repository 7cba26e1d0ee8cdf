"""Whole files: a reader, or a process killed half-way, meets the old content or the new, never half of it."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK})


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` to a temporary file next to ``path``, flush it to disk, rename it over ``path``.

    A file or link planted at the temporary name is refused. OSError (disk full, no permission) leaves ``path`` as it
    was and no temporary file behind.
    """
    with _flushed(path, text) as temporary:
        temporary.replace(path)
    _flush_folder(path.parent)


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """As :func:`write_atomically`, for content that is no text."""
    with _flushed(path, content) as temporary:
        temporary.replace(path)
    _flush_folder(path.parent)


def write_once(path: Path, content: str | bytes) -> None:
    """As :func:`write_atomically`, but ``path`` must be free: FileExistsError when something is there already.

    A hard link claims the name in one step. File systems without hard links get a rename after a look: there, of two
    writers in the same instant the later one wins.
    """
    with _flushed(path, content) as temporary:
        try:
            path.hardlink_to(temporary)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            if path.exists():
                raise FileExistsError(errno.EEXIST, "is there already", str(path)) from error
            temporary.replace(path)
    _flush_folder(path.parent)


@contextmanager
def _flushed(path: Path, content: str | bytes) -> Iterator[Path]:
    """A temporary file next to ``path`` with ``content`` on disk, text as UTF-8; gone afterwards if it was not renamed."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o640)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content if isinstance(content, bytes) else content.encode("utf-8"))
            stream.flush()
            os.fsync(stream.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    """A rename survives a power cut only once its folder is on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
