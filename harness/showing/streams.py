"""Output streams whose reader may go away: the exit code is the verdict, whoever has stopped listening."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def readers_may_leave() -> Iterator[None]:
    """Inside the block, what is written to a closed pipe is dropped; `| head` neither fails a run nor hides a regression.

    Streams that somebody has put in place of the process's own are left alone.
    """
    own = sys.stdout, sys.stderr
    if sys.stdout is sys.__stdout__ is not None:
        sys.stdout = _forgiving(sys.__stdout__, line_buffering=sys.__stdout__.isatty())
    if sys.stderr is sys.__stderr__ is not None:
        sys.stderr = _forgiving(sys.__stderr__, line_buffering=True)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        sys.stdout, sys.stderr = own


class _Discarding(io.FileIO):
    def write(self, data) -> int:  # type: ignore[no-untyped-def] # noqa: ANN001 (a buffer, which typeshed names privately)
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def _forgiving(stream: TextIO, *, line_buffering: bool) -> TextIO:
    raw = io.BufferedWriter(_Discarding(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(raw, encoding=stream.encoding, errors=stream.errors, line_buffering=line_buffering)
