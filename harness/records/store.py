"""The results folder: whole writes, run folders, calibrations."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import harness
from harness.errors import BadRequestError, RunFailedError
from harness.records.folders import folder_named, new_folder
from harness.records.run import RunRecord
from harness.records.strict_json import OtherVersionError, RejectedError, read_document

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


RECORD = "record.json"

MEND_RECORD = "mbr-perf results doctor says what can be done about it"
_CHECKOUT = Path(harness.__file__).parents[1]


def checkout_dir() -> Path | None:
    """The source checkout this package runs from; None when it is installed as a wheel."""
    return _CHECKOUT if (_CHECKOUT / "pyproject.toml").is_file() else None


def results_dir(override: Path | None = None) -> Path:
    """Where runs are kept: ``--results_dir``, else the checkout's ``results``, else ``./results``."""
    if override is not None:
        return override
    checkout = checkout_dir()
    return checkout / "results" if checkout else Path("results")


def new_run_dir(results: Path, recipe: str, *, now: datetime | None = None) -> Path:
    """Make ``runs/<UTC time>-<recipe>-<8 hex>`` with its ``ranks`` and ``logs``; the name is the run's id.

    Two runs of one recipe in one second get two folders. BadRequestError where the folder cannot be made.
    """
    return new_folder(results / "runs", recipe, ("ranks", "logs"), now=now)


def write_record(run_dir: Path, record: RunRecord) -> Path:
    """Commit a run: ``record.json`` appears whole. RunFailedError when there is one already; OSError as the disk says."""
    path = run_dir / RECORD
    try:
        write_once(path, record.model_dump_json(indent=1) + "\n")
    except FileExistsError as error:
        raise RunFailedError(f"{path}: is there already, and a committed run is never overwritten") from error
    return path


def read_run(reference: str | Path, results: Path | None = None) -> RunRecord:
    """The committed record of a run folder, a ``record.json``, or the start of a run's id under ``results/runs``.

    BadRequestError for a reference that names none or several, a run that was never committed, or a file that is
    corrupt or newer than this program.
    """
    return read_record(record_path(reference, results))


def read_record(path: Path) -> RunRecord:
    """One ``record.json``; BadRequestError for one that is damaged or newer than this program, with what to do."""
    try:
        return read_document(path, RunRecord)
    except (OtherVersionError, RejectedError) as error:
        *others, last = error.problems
        raise type(error)([*others, BadRequestError(last.message, remedy=last.remedy or MEND_RECORD)]) from error
    except BadRequestError as error:
        raise BadRequestError(error.message, remedy=MEND_RECORD) from error


def record_path(reference: str | Path, results: Path | None = None) -> Path:
    """The ``record.json`` that ``reference`` means, as for :func:`read_run`."""
    path = Path(reference)
    if path.is_file():
        return path
    run_dir = path if path.is_dir() else folder_named(str(reference), results_dir(results) / "runs", "run")
    record = run_dir / RECORD
    if not record.is_file():
        raise BadRequestError(
            f"{run_dir}: no {RECORD}: the run is still going, or the harness was killed before it could commit it",
            remedy="what its ranks measured is in its ranks folder",
        )
    return record
