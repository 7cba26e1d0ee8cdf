"""The results folder: atomic writes and run folders."""

import errno
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from harness.errors import BadRequestError, RunFailedError
from harness.experiment.frozen import Frozen
from harness.records.folders import new_folder
from harness.records.references import MARKS, folder_of, refuse_other_kinds
from harness.records.run import RunRecord
from harness.records.strict_json import read_document

_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK})


Content = str | bytes | Frozen | Callable[[BinaryIO], None]
"""What a file gets: a model as JSON; a function writes into the open file."""


def write_atomically(path: Path, content: Content) -> None:
    """Write ``content`` over ``path`` in one step. OSError leaves ``path`` as it was."""
    with _flushed(path, content) as temporary:
        temporary.replace(path)
    _flush_folder(path.parent)


def write_once(path: Path, content: Content) -> None:
    """As :func:`write_atomically`, but FileExistsError if ``path`` exists; without hard links the later of two wins."""
    with _flushed(path, content) as temporary:
        try:
            path.hardlink_to(temporary)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            if path.exists():
                raise FileExistsError(errno.EEXIST, "already exists", str(path)) from error
            temporary.replace(path)
    _flush_folder(path.parent)


@contextmanager
def _flushed(path: Path, content: Content) -> Iterator[Path]:
    text = content.model_dump_json(indent=1) + "\n" if isinstance(content, Frozen) else content
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o640)
    try:
        try:
            with os.fdopen(descriptor, "wb") as stream:
                if callable(text):
                    text(stream)
                else:
                    stream.write(text if isinstance(text, bytes) else text.encode("utf-8"))
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            error.filename = error.filename or str(path)  # write and fsync name no file
            raise
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    """Flush the folder to disk, so that a rename survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        error.filename = error.filename or str(folder)
        raise
    finally:
        os.close(descriptor)


RECORD = MARKS["run"]

MEND_RECORD = "read it with the mbr-perf that wrote it, or delete its folder; the ranks folder has the measurements"


def new_run_dir(results: Path, recipe: str) -> Path:
    """Make the folder of a run, with its ``ranks`` and ``logs``, as :func:`new_folder`."""
    return new_folder(results / "runs", recipe, ("ranks", "logs"))


def write_record(run_dir: Path, record: RunRecord) -> Path:
    """Commit a run: write ``record.json`` atomically. RunFailedError if it exists; OSError from the disk."""
    path = run_dir / RECORD
    try:
        write_once(path, record)
    except FileExistsError as error:
        raise RunFailedError(f"{path}: already exists, and mbr-perf never overwrites a committed run") from error
    return path


def read_run(reference: str | Path, results: Path | None = None) -> RunRecord:
    """Read a run by folder, ``record.json`` or a part of its id. BadRequestError: none, several, or damaged."""
    return read_record(record_path(reference, results))


def read_record(path: Path) -> RunRecord:
    """Read a ``record.json``. BadRequestError, with a remedy, if it is damaged."""
    try:
        return read_document(path, RunRecord)
    except BadRequestError as error:
        raise BadRequestError(error.message, remedy=MEND_RECORD) from error


def record_path(reference: str | Path, results: Path | None = None) -> Path:
    """Return the path of the ``record.json`` for a ``reference``, as in :func:`read_run`."""
    path = Path(reference)
    if path.is_file():
        refuse_other_kinds(path, ("run",))
        return path
    run_dir = folder_of(reference, "run", results)
    if is_committed(run_dir):
        return run_dir / RECORD
    kept = "; its ranks folder holds what was measured so far" if any(run_dir.glob("ranks/*")) else ""
    raise BadRequestError(
        f"{run_dir}: no {RECORD}: the run is not finished, or mbr-perf was killed before it could commit the run",
        remedy=f"run it again{kept}",
    )


def is_committed(run_dir: Path) -> bool:
    """Tell whether the run has its record."""
    return (run_dir / RECORD).is_file()
