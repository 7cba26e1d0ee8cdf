"""How much of the logs has passed, and where it stops: a pipe need not have an end, and a person may have seen enough."""

import select
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BufferedReader, RawIOBase
from os import fstat
from typing import IO, TYPE_CHECKING

from harness.units import GIB

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_CHUNK_BYTES = 1 << 18
_WAIT_S = 0.5


@dataclass
class Passage:
    """Counts bytes over all sources. ``most_pipe_bytes``: of what has no size of its own, no more than this is read.

    ``is_stopped``: to be set by whoever wants the reading to end as if the logs did. ``total_bytes``: None where a pipe is
    among them. ``on_progress`` is called for every chunk, and while a pipe is silent. ``notes``: why not all was read.
    """

    most_pipe_bytes: int = 4 * GIB
    on_progress: "Callable[[Passage], None] | None" = None
    num_bytes: int = 0
    total_bytes: int | None = None
    is_stopped: bool = False
    notes: list[str] = field(default_factory=list)

    def tell(self) -> None:
        """Let those who watch know."""
        if self.on_progress is not None:
            self.on_progress(self)


def counted(stream: BufferedReader, name: str, passage: Passage) -> BufferedReader:
    """The same stream, counted, and ended where ``passage`` says so."""
    return BufferedReader(_Counted(stream, name, passage), _CHUNK_BYTES)


class _Counted(RawIOBase):
    def __init__(self, stream: BufferedReader, name: str, passage: Passage) -> None:
        self._stream, self._name, self._passage = stream, name, passage
        self._pipe = _pipe(stream)
        self._left = passage.most_pipe_bytes

    def readable(self) -> bool:
        """For BufferedReader."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """The next bytes; 0 at the end, be it the stream's or the passage's."""
        passage = self._passage
        if self._pipe is not None and not self._has_more(self._pipe):
            return 0
        if passage.is_stopped:
            return 0
        room = memoryview(buffer)
        wanted = len(room) if self._pipe is None else min(len(room), self._left)
        data = self._stream.read1(wanted)
        room[: len(data)] = data
        passage.num_bytes += len(data)
        self._left -= len(data)
        passage.tell()
        return len(data)

    def _has_more(self, pipe: IO[bytes]) -> bool:
        """Wait for the pipe without missing that somebody has seen enough."""
        if self._left <= 0:
            read = f"{self._passage.most_pipe_bytes / GIB:.3g} GiB"
            self._passage.notes.append(f"{self._name}: only the first {read} were read, as of every pipe.")
            return False
        while not self._passage.is_stopped:
            if select.select([pipe], [], [], _WAIT_S)[0]:
                return True
            self._passage.tell()
        return False


def _pipe(stream: BufferedReader) -> BufferedReader | None:
    """The stream where it is a pipe, a socket or a terminal; None for a file, and for what is in memory."""
    try:
        mode = fstat(stream.fileno()).st_mode
    except OSError:  # io.UnsupportedOperation too: a stream in memory has no number
        return None
    return None if stat.S_ISREG(mode) else stream
