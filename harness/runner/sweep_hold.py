"""One process at a time works in a sweep's folder; the kernel lets go of it however that process ends."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import BadRequestError
from harness.launch.ownership import claim, life_of, release

_LOCK = ".lock"


@contextmanager
def holding(sweep_dir: Path) -> Iterator[None]:
    """Inside the block no other process runs cells in ``sweep_dir``. BadRequestError where one does already."""
    with (sweep_dir / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadRequestError(
                f"{sweep_dir}: the sweep is still at work: {life_of(sweep_dir).reason}",
                remedy="wait for it, or end it with Ctrl-C first",
            ) from error
        claim(sweep_dir)
        try:
            yield
        finally:
            release(sweep_dir)
