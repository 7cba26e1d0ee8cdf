"""One process at a time works in the folder of a sweep or a night; the kernel lets go of it however that process ends."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from harness.errors import BadRequestError
from harness.launch.ownership import claim, life_of, release

_LOCK = ".lock"


@contextmanager
def holding(folder: Path, what: str = "sweep") -> Iterator[None]:
    """Inside the block no other process runs anything in ``folder``, which is that of a ``what``.

    BadRequestError where one does already, or where nothing can be written.
    """
    with _opened(folder, what) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadRequestError(
                f"{folder}: the {what} is still at work: {life_of(folder).reason}",
                remedy="wait for it, or end it with Ctrl-C first",
            ) from error
        try:
            claim(folder)
        except OSError as error:
            raise _not_writable(folder, what, error) from error
        try:
            yield
        finally:
            release(folder)


def _opened(folder: Path, what: str) -> TextIO:
    try:
        return (folder / _LOCK).open("a")
    except OSError as error:
        raise _not_writable(folder, what, error) from error


def _not_writable(folder: Path, what: str, error: OSError) -> BadRequestError:
    return BadRequestError(
        f"{folder}: the {what} cannot be run: {error.strerror}: {error.filename or _LOCK}",
        remedy="make the folder writable, or copy it to where it is; reports need no writing",
    )
