"""Log files, folders of logs and standard input as cleaned lines, in memory that does not grow with the input."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import cast

from harness.errors import BadRequestError
from harness.records.logs.cleaning import cleaned
from harness.records.logs.glued import records_in
from harness.records.logs.passage import Passage, counted
from harness.records.logs.pieces import numbered_pieces
from harness.records.logs.prefixes import PrefixReader
from harness.records.logs.refusal import PEEK_BYTES, why_refused
from harness.records.logs.sources import LogSource, log_sources


@dataclass(frozen=True, slots=True)
class LogLine:
    """One record of a log. ``number`` counts lines of ``source`` from 1; records that share a line share its number.

    ``text`` is without prefixes, colours and control characters. ``rank`` and ``host`` are None where nothing tells
    them; ``time`` is the line's own date and time as it was written.
    """

    text: str
    source: str
    number: int
    rank: int | None = None
    host: str | None = None
    time: str | None = None

    @property
    def where(self) -> str:
        """``logs/rank_003.log:118``."""
        return f"{self.source}:{self.number}"


def log_lines(
    paths: Iterable[str | Path], stdin: BufferedReader | None = None, passage: Passage | None = None
) -> Iterator[LogLine]:
    """The lines of all ``paths``, file after file: files, folders searched for logs, ``-`` for ``stdin``.

    A line longer than ``pieces.MAX_PIECE_BYTES`` comes in pieces; blank lines do not come. Plain text only: for
    compressed and binary files, and those that are missing or unreadable, BadRequestError names all of them before
    the first line; what comes through a pipe is looked at in its turn. ``passage`` counts what is read, and ends it.
    """
    return _all_lines(log_sources(paths), stdin, passage or Passage())


def _all_lines(sources: tuple[LogSource, ...], stdin: BufferedReader | None, passage: Passage) -> Iterator[LogLine]:
    passage.total_bytes = _total_bytes(sources)
    for source in sources:
        if passage.is_stopped:
            return
        try:
            if source.path is None:
                yield from lines_of(source, counted(stdin or _standard_input(), source.name, passage))
            else:
                with source.path.open("rb") as stream:
                    yield from lines_of(source, counted(stream, source.name, passage))
        except OSError as error:
            raise BadRequestError(f"{source.name}: cannot be read: {error.strerror}") from error


def _total_bytes(sources: Iterable[LogSource]) -> int | None:
    """None where one of them has no size."""
    paths = [source.path for source in sources]
    if any(path is None or not path.is_file() for path in paths):
        return None
    return sum(path.stat().st_size for path in paths if path is not None)


def _standard_input() -> BufferedReader:
    """What was piped in, or what a caller of this process put in its place."""
    stream = sys.stdin.buffer
    return stream if isinstance(stream, BufferedReader) else BufferedReader(cast(RawIOBase, stream))


def lines_of(source: LogSource, stream: BufferedReader) -> Iterator[LogLine]:
    """The lines of one stream. Its beginning is looked at first: whether it is text, and srun's labels."""
    head = stream.peek(PEEK_BYTES)
    refused = why_refused(head)
    if refused:
        raise BadRequestError(f"{source.name}: {refused[0]}", remedy=refused[1])
    prefixes = PrefixReader(source.rank, head)
    for number, piece in numbered_pieces(stream):
        line = prefixes.read(cleaned(piece))
        first, *later = records_in(line.text)
        if first:
            yield LogLine(first, source.name, number, line.rank, line.host, line.time)
        for text in later:
            record = prefixes.read(text, outer=line)
            if record.text:
                yield LogLine(record.text, source.name, number, record.rank, record.host, record.time)
