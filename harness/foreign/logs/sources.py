"""The sources of a log: files and pipes, progress in bytes, and files that are not logs."""

import gzip
import os
import re
import select
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from harness.errors import BadRequestError, Problems, raise_all

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

PEEK_BYTES = 8192

_MAX_ODD_SHARE = 0.3  # of the bytes looked at; text in an old 8-bit encoding stays below, compressed data is near 0.5
_TEXT_BYTES = bytes((*range(0x20, 0x7F), 0, 7, 8, 9, 10, 12, 13, 27))  # NUL: a log truncated while it is written

_GZIP = b"\x1f\x8b"
_BINARY = (b"PK\x03\x04", b"\x80")  # an archive or a checkpoint, and a pickle: their further bytes may look like text
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)  # of a gzip file, also of one that was cut short


def require_text(head: bytes, name: str) -> None:
    """Raise BadRequestError unless ``head``, the beginning of a stream, is text or empty."""
    if head[257:262] == b"ustar" or head.startswith(_BINARY) or _odd_share(head[:PEEK_BYTES]) > _MAX_ODD_SHARE:
        remedy = "name the log, or decompress it: zcat, zstdcat, xzcat or bzcat FILE | mbr-perf ... -"
        raise BadRequestError(f"{name}: binary, not a log", remedy=remedy)


def _odd_share(head: bytes) -> float:
    undecodable = head.decode(errors="replace").count("\ufffd")
    controls = sum(byte < 0x80 for byte in head.translate(None, _TEXT_BYTES))
    return (controls + undecodable) / max(len(head), 1)


STDIN = "-"

_PACKED = ".gz"
_LOG_NAME = re.compile(r"(?:\.(?:log|out|err|txt)(?:\.\d+)?|^(?:stdout|stderr|output|error))(?:\.gz)?$", re.IGNORECASE)
# rank_003.log, task-3.err; slurm-4711-3.out of --output=slurm-%j-%t.out. slurm-4711_3.out is a task of a job array.
_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])(?:rank|task|proc)[-_.]?(\d{1,6})(?!\d)|^slurm-\d+-(\d{1,6})\.", re.IGNORECASE)
# <log folder of torchrun>/<run id>/attempt_0/3/stdout.log
_STREAM_NAME = re.compile(r"^(?:stdout|stderr)(?:\.log)?(?:\.gz)?$")


@dataclass(frozen=True, slots=True)
class LogSource:
    """One stream of lines. ``path`` is None for standard input. ``rank``: from the file's name."""

    name: str
    path: Path | None
    rank: int | None = None


def is_stream(log: str) -> bool:
    """Return whether a log is standard input or a pipe, which can be read only once."""
    return log == STDIN or Path(log).is_fifo()


def log_sources(paths: Iterable[str | Path]) -> tuple[LogSource, ...]:
    """List every file once, folders in order of ranks. BadRequestError names all files that are not logs."""
    found: dict[Path | None, LogSource] = {}
    problems = Problems()
    for given in paths:
        if str(given) == STDIN:
            if sys.stdin is None:  # Python's value for a closed one
                problems.add("-: standard input is closed", "pipe the log in, or name its file")
            found.setdefault(None, LogSource("<stdin>", None))
            continue
        with problems.collecting():
            for path in _files(Path(given)):
                found.setdefault(path.resolve(), LogSource(str(path), path, rank_in_path(path)))
    for source in (source for source in found.values() if source.path):
        with problems.collecting():
            _require_log(source)
    problems.raise_if_any()
    return tuple(found.values())


def rank_in_path(path: Path) -> int | None:
    """Return the rank in a file's name or in torchrun's folder; torchrun counts the ranks of each node from 0."""
    match = _RANK_IN_NAME.search(path.name)
    if match:
        return int(match[1] or match[2])
    folder = path.parent.name
    return int(folder) if _STREAM_NAME.match(path.name) and folder.isdecimal() and len(folder) < 7 else None


def _files(given: Path) -> list[Path]:
    if not given.exists():
        raise BadRequestError(f"{given}: no such file or folder")
    if not given.is_dir():
        return [given]
    unread: list[BadRequestError] = []
    found = _logs_below(given, unread)  # 10 stands after 9
    files = sorted(found, key=lambda path: [int(p) if p.isdecimal() else p for p in re.split(r"(\d+)", str(path))])
    raise_all(unread)
    if not files:
        message = f"{given}: no logs found (*.log, *.out, *.err, *.txt, stdout, stderr)"
        raise BadRequestError(message, remedy="name the files themselves")
    return files


def _logs_below(folder: Path, unread: list[BadRequestError]) -> Iterator[Path]:

    def refuse(error: OSError) -> None:
        unread.append(BadRequestError(f"{error.filename}: cannot be read: {error.strerror}"))

    for parent, _, names in os.walk(folder, onerror=refuse):
        for name in names:
            path = Path(parent, name)
            is_copy = path.suffix == _PACKED and path.stem in names
            if _LOG_NAME.search(name) and not is_copy and path.is_file():
                yield path


_NO_LOGS = (".sh", ".sbatch", ".slurm", ".py", ".yaml", ".yml", ".md", ".rst", ".toml", ".html")


def _require_log(source: LogSource) -> None:
    assert source.path is not None
    if (suffix := source.path.suffix) in _NO_LOGS:
        remedy = "name the log that the job printed; mbr-perf plan FILE reads the job itself"
        raise BadRequestError(f"{source.name}: a {suffix} file, not a log", remedy=remedy)
    try:
        mode = source.path.stat().st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise BadRequestError(f"{source.name}: a device, not a log", remedy="name files, or - for standard input")
        if stat.S_ISREG(mode):
            with source.path.open("rb") as stream:
                packed = stream.peek(PEEK_BYTES).startswith(_GZIP)
                head = (_unpacked(stream) if packed else stream).read(PEEK_BYTES)
            require_text(head, source.name)
    except _DAMAGED as error:
        raise BadRequestError(f"{source.name}: compressed (gzip) and damaged", remedy="compress it again") from error
    except OSError as error:
        raise BadRequestError(f"{source.name}: cannot be read: {error.strerror}") from error


_CHUNK_BYTES = 1 << 18
_WAIT_S = 0.5


@dataclass
class Passage:
    """Counts bytes; set ``is_stopped`` to end the reading. ``total_bytes``: None for a pipe."""

    on_progress: "Callable[[Passage], None] | None" = None
    num_bytes: int = 0
    total_bytes: int | None = None
    is_stopped: bool = False
    notes: list[str] = field(default_factory=list)

    def report(self) -> None:
        """Call ``on_progress``."""
        if self.on_progress is not None:
            self.on_progress(self)


def open_file_or_pipe(path: Path) -> BufferedReader:
    """Open a file or a pipe for reading, without waiting until a program opens a named pipe for writing."""
    stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    os.set_blocking(stream.fileno(), True)
    return stream


def total_bytes(sources: Iterable[LogSource]) -> int | None:
    """Return the total size; None if a source has no size, or its size does not count its text."""
    paths = [source.path for source in sources]
    if any(path is None or path.suffix == _PACKED or not path.is_file() for path in paths):
        return None
    return sum(path.stat().st_size for path in paths if path is not None)


def _unpacked(stream: BufferedReader) -> BufferedReader:
    return cast(BufferedReader, gzip.GzipFile(fileobj=stream))


def counted(stream: BufferedReader, name: str, passage: Passage) -> BufferedReader:
    """Wrap the stream: count its bytes in ``passage``, and end it when ``passage`` is stopped. Unpacks a gzip file."""
    return BufferedReader(_Counted(stream, name, passage), _CHUNK_BYTES)


class _Counted(RawIOBase):
    def __init__(self, stream: BufferedReader, name: str, passage: Passage) -> None:
        self._name, self._passage = name, passage
        is_file = stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
        self._pipe = None if is_file else stream
        self._stream = _unpacked(stream) if is_file and stream.peek(len(_GZIP)).startswith(_GZIP) else stream

    def readable(self) -> bool:
        """For BufferedReader."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Read the next bytes; 0 at the end of the stream or of the passage."""
        passage = self._passage
        if (self._pipe is not None and not self._has_more(self._pipe)) or passage.is_stopped:
            return 0
        room = memoryview(buffer)
        try:
            data = self._stream.read1(len(room))
        except _DAMAGED:
            data = b""
            passage.notes.append(
                f"{self._name}: the compressed file is damaged or cut short: only its beginning was read."
            )
        room[: len(data)] = data
        passage.num_bytes += len(data)
        passage.report()
        return len(data)

    def _has_more(self, pipe: IO[bytes]) -> bool:
        while not self._passage.is_stopped:
            if select.select([pipe], [], [], _WAIT_S)[0]:
                return True
            self._passage.report()
        return False
