"""Cleans, splits and numbers the lines of a log."""

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import cast

from harness.errors import os_errors_reported
from harness.foreign.logs.prefixes import PrefixReader
from harness.foreign.logs.sieve import Sieve, Wanted, as_text, cleaned_bytes, numbered_pieces
from harness.foreign.logs.sources import (
    PEEK_BYTES,
    LogSource,
    Passage,
    counted,
    log_sources,
    open_file_or_pipe,
    require_text,
    total_bytes,
)

# How records of training logs begin. A line is cut before each.
_BEGINNING = re.compile(
    r"\[(?:rank|default)\d{1,6}\]:"
    r"|\[Rank \d{1,6}\] \(after \d"
    r"|\[\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[^\]\s]{0,16}\] iteration\s"
    r"|Step Time : "
    r"|Traceback \(most recent call last\):"
    r"|(?<!\]:)(?<!\]: )\[[EWF](?:\d{3,4} [\d:.]{8,18} (?:\d{1,8} )?)? ?ProcessGroupNCCL\.cpp:\d{1,5}\]"
    r"|(?<=(?:it/s|s/it)\])\s{0,4}(?=[A-Za-z])"  # behind a progress bar
)
# Every record inside a line has one of these. Searching for them is much cheaper.
_SIGNS = re.compile(r"\[|Step Time : |Traceback \(|it/s\]|s/it\]")


def records_in(text: str) -> Iterator[str]:
    """Yield the records of a line in order; the line itself if no record begins inside it."""
    if not _SIGNS.search(text, 1):
        yield text
        return
    start = 0
    for match in _BEGINNING.finditer(text, 1):
        yield text[start : match.start()].strip()
        start = match.start()
    yield text[start:]


@dataclass(frozen=True, slots=True)
class LogLine:
    """One record of a log, without prefixes and colours. ``number``: of its line in ``source``, from 1."""

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
    paths: Iterable[str | Path], passage: Passage | None = None, *, wanted: Wanted | None = None
) -> Iterator[LogLine]:
    """Yield the lines of files, folders and ``-``. First, BadRequestError names all that are no text."""
    return _all_lines(log_sources(paths), passage or Passage(), wanted)


def _all_lines(sources: tuple[LogSource, ...], passage: Passage, wanted: Wanted | None) -> Iterator[LogLine]:
    passage.total_bytes = total_bytes(sources)
    for source in sources:
        if passage.is_stopped:
            return
        with os_errors_reported(f"{source.name}: cannot be read"):
            if source.path is None:
                piped = cast(BufferedReader, sys.stdin.buffer)
                yield from lines_of(source, counted(piped, source.name, passage), wanted)
            else:
                with open_file_or_pipe(source.path) as stream:
                    yield from lines_of(source, counted(stream, source.name, passage), wanted)


def lines_of(source: LogSource, stream: BufferedReader, wanted: Wanted | None = None) -> Iterator[LogLine]:
    """Yield the lines of one stream. First check whether it is text, and look for srun's labels."""
    head = stream.peek(PEEK_BYTES)
    require_text(head, source.name)
    whole = [as_text(line) for line in cleaned_bytes(head[: head.rfind(b"\n") + 1]).split(b"\n")]
    prefixes = PrefixReader(source.rank, whole)
    for number, piece in numbered_pieces(stream, Sieve(wanted) if wanted else None):
        yield from _records(prefixes, source.name, number, as_text(piece))


def _records(prefixes: PrefixReader, source: str, number: int, text: str) -> list[LogLine]:
    line = prefixes.read(text)
    first, *later = records_in(line.text)
    found = [LogLine(first, source, number, line.rank, line.host, line.time)] if first else []
    for more in later:
        record = prefixes.read(more, outer=line)
        if record.text:
            found.append(LogLine(record.text, source, number, record.rank, record.host, record.time))
    return found
