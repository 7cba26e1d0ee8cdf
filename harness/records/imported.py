"""Where a run record comes from that was read from somebody's training log, and what that log did not say."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from harness.errors import BadRequestError
from harness.experiment.gpu import Frozen

StartSource = Literal["log", "told", "unknown"]  # of the time at which the job started

IMPORTED = "imported from "  # how the first note of such a run begins
LAUNCHER = "import"  # how the plan of a sweep says that its runs are such runs


class LogFile(Frozen):
    """One file as it was read; ``sha256`` is of its bytes."""

    name: str
    num_bytes: int
    sha256: str


class LoggedThroughput(Frozen):
    """TFLOP/s/GPU of one step by the log's own formula. Steps count from 0."""

    step: int
    tflops_per_gpu: float


class ImportedLog(Frozen):
    """The log behind a record. ``source_format`` is None where no line tells whose log it is.

    ``interval``: iterations from one line to the next; a line's figures are means over them. ``clock_rank``: whose record
    holds the step times, ``is_clock_told`` False where that is taken from the format's habit. ``first_line`` and
    ``last_line``: when the first and the last iteration were logged, or any line where none was, as the log writes it.
    ``start_source``: who tells when the job started; ``unknown`` where the record has the time of the import,
    ``imported_at``, in its place.
    ``unsaid``: what a run of our own would know and this one does not.
    """

    source_format: Literal["bridge", "megatron-lm"] | None
    files: tuple[LogFile, ...]
    interval: int = 1
    clock_rank: int = 0
    is_clock_told: bool = False
    total_iterations: int | None = None
    throughput: tuple[LoggedThroughput, ...] = ()
    first_line: str | None = None
    last_line: str | None = None
    start_source: StartSource = "unknown"
    imported_at: str | None = None
    unsaid: tuple[str, ...] = ()


def log_files(names: Iterable[str]) -> tuple[LogFile, ...]:
    """Size and checksum of every file. BadRequestError for one that cannot be read."""
    return tuple(_log_file(Path(name)) for name in names)


def _log_file(path: Path) -> LogFile:
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            return LogFile(name=str(path), num_bytes=stream.tell(), sha256=digest)
    except OSError as error:
        raise BadRequestError(f"{path}: cannot be read: {error.strerror}") from error
