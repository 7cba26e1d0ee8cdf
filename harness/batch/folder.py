"""The folder of a batch is held by one process at a time; each of its runs gets a fresh folder inside."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import TextIO

from harness.errors import BadRequestError, RunFailedError
from harness.launch.ownership import claim, life_of, release

_LOCK = ".lock"


@contextmanager
def holding(folder: Path, what: str) -> Iterator[None]:
    """Inside the block no other process runs anything in ``folder``, the folder of a ``what``.

    The kernel releases the lock however the process ends. BadRequestError where another process holds the folder, or
    where nothing can be written.
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


def fresh_folder(run_dir: Path) -> Path:
    """The folder, new, with empty ``ranks`` and ``logs``. RunFailedError where it cannot be made.

    What a killed attempt left there is moved aside and never deleted.
    """
    try:
        if run_dir.exists():
            run_dir.rename(_free_name(run_dir))
        make_folder(run_dir)
    except OSError as error:
        raise RunFailedError(f"{run_dir}: cannot be made: {error.strerror}") from error
    return run_dir


def make_folder(run_dir: Path) -> None:
    """A run's folder with ``ranks`` and ``logs``; what is there already stays. OSError where it cannot be made."""
    for inner in ("ranks", "logs"):
        (run_dir / inner).mkdir(mode=0o750, parents=True, exist_ok=True)


def asides(run_dir: Path) -> tuple[Path, ...]:
    """What was moved aside for the run that lies there now."""
    return tuple(sorted(run_dir.parent.glob(f"{escape(run_dir.name)}.incomplete-*")))


def _free_name(run_dir: Path) -> Path:
    number = 1
    while (aside := run_dir.with_name(f"{run_dir.name}.incomplete-{number}")).exists():
        number += 1
    return aside
