"""One process at a time works in a sweep's folder; the kernel lets go of it however that process ends."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from harness.errors import BadRequestError
from harness.launch.ownership import claim, life_of, release

_LOCK = ".lock"


@contextmanager
def holding(sweep_dir: Path) -> Iterator[None]:
    """Inside the block no other process runs cells in ``sweep_dir``.

    BadRequestError where one does already, or where nothing can be written.
    """
    with _opened(sweep_dir) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadRequestError(
                f"{sweep_dir}: the sweep is still at work: {life_of(sweep_dir).reason}",
                remedy="wait for it, or end it with Ctrl-C first",
            ) from error
        try:
            claim(sweep_dir)
        except OSError as error:
            raise _not_writable(sweep_dir, error) from error
        try:
            yield
        finally:
            release(sweep_dir)


def _opened(sweep_dir: Path) -> TextIO:
    try:
        return (sweep_dir / _LOCK).open("a")
    except OSError as error:
        raise _not_writable(sweep_dir, error) from error


def _not_writable(sweep_dir: Path, error: OSError) -> BadRequestError:
    return BadRequestError(
        f"{sweep_dir}: the sweep cannot be run: {error.strerror}: {error.filename or _LOCK}",
        remedy="make the folder writable, or copy it to where it is; reports need no writing",
    )
