"""Cleans, splits and numbers the lines of a log."""

import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import cast

from harness.errors import BadRequestError, os_errors_reported
from harness.foreign.logs.prefixes import PrefixReader
from harness.foreign.logs.sources import (
    PEEK_BYTES,
    LogSource,
    Passage,
    as_utf8,
    counted,
    log_sources,
    open_file_or_pipe,
    total_bytes,
    why_refused,
)

# How records of training logs begin. A line is cut before each, except inside JSON, where these are text.
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
_PLAIN_SIGNS = ("[", "Step Time : ", "Traceback (", "it/s]", "s/it]")
_BETWEEN_OBJECTS = re.compile(r'(?<=\})(?=\{")')


def records_in(text: str) -> Iterator[str]:
    """Yield the records of a line in order; the line itself if no record begins inside it."""
    if not text.startswith("{") and not any(sign in text[1:] for sign in _PLAIN_SIGNS):
        yield text
        return
    start = 0
    boundary = _BETWEEN_OBJECTS if text.startswith("{") else _BEGINNING
    for match in boundary.finditer(text, 1):
        yield text[start : match.start()].strip()
        start = match.start()
    yield text[start:]


MAX_PIECE_BYTES = 1 << 16


def numbered_pieces(stream: BufferedReader) -> Iterator[tuple[int, bytes]]:
    """Yield every line with its number, without its line end. Split at carriage returns, and split long lines.

    A long line is cut at the last space or NUL byte in its second half, if there is one.
    """
    number, rest = 1, b""
    while raw := stream.readline(MAX_PIECE_BYTES - len(rest)):
        line, rest = rest + raw, b""
        is_cut = not raw.endswith(b"\n") and len(line) >= MAX_PIECE_BYTES
        if is_cut and (cut := max(line.rfind(blank, MAX_PIECE_BYTES // 2) for blank in (b" ", b"\0"))) > 0:
            line, rest = line[:cut], line[cut:]
        for segment in line.rstrip(b"\r\n").split(b"\r"):
            if segment:
                yield number, segment
        number += raw.endswith(b"\n")
    if rest:
        yield number, rest


@dataclass(frozen=True, slots=True)
class LogLine:
    """One record of a log. ``number`` counts lines of ``source`` from 1; records that share a line share its number.

    ``text`` has no prefixes, colours or control characters. ``rank`` and ``host`` are None if unknown. ``time``: the
    line's date and time as written.
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
    """Yield the lines of all ``paths``, file after file. A path: a file, a folder to search for logs, ``-`` for ``stdin``.

    Split lines longer than ``MAX_PIECE_BYTES``, and skip blank lines. Only plain text, in UTF-8 or UTF-16, also
    compressed with gzip: before the first line, BadRequestError names all files that are binary, missing or unreadable. A pipe is checked when it is read.
    ``passage`` counts the bytes read and can stop the reading.
    """
    return _all_lines(log_sources(paths), stdin, passage or Passage())


def _all_lines(sources: tuple[LogSource, ...], stdin: BufferedReader | None, passage: Passage) -> Iterator[LogLine]:
    passage.total_bytes = total_bytes(sources)
    for source in sources:
        if passage.is_stopped:
            return
        with os_errors_reported(f"{source.name}: cannot be read"):
            if source.path is None:
                yield from lines_of(source, counted(stdin or _standard_input(), source.name, passage))
            else:
                with open_file_or_pipe(source.path, source.name, passage) as stream:
                    yield from lines_of(source, counted(stream, source.name, passage))


def _standard_input() -> BufferedReader:
    """Return standard input, or the stream that a caller put in its place."""
    stream = sys.stdin.buffer
    return stream if isinstance(stream, BufferedReader) else BufferedReader(cast(RawIOBase, stream))


def lines_of(source: LogSource, stream: BufferedReader) -> Iterator[LogLine]:
    """Yield the lines of one stream. First check whether it is text, and look for srun's labels."""
    head = stream.peek(PEEK_BYTES)
    refused = why_refused(head)
    if refused:
        raise BadRequestError(f"{source.name}: {refused[0]}", remedy=refused[1])
    stream = as_utf8(stream)
    head = stream.peek(PEEK_BYTES)
    whole = [cleaned(line) for line in head[: head.rfind(b"\n") + 1].split(b"\n")]
    is_numbered = are_numbered(whole)
    prefixes = PrefixReader(source.rank, [text for _, text in unpacked(enumerate(whole), is_numbered=is_numbered)])
    pieces = ((number, cleaned(piece)) for number, piece in numbered_pieces(stream))
    for number, text in unpacked(pieces, is_numbered=is_numbered):
        yield from _records(prefixes, source.name, number, text)


def _records(prefixes: PrefixReader, source: str, number: int, text: str) -> list[LogLine]:
    """Return the records of a line, each with its own prefixes, else with those of the line."""
    line = prefixes.read(text)
    first, *later = records_in(line.text)
    found = [LogLine(first, source, number, line.rank, line.host, line.time)] if first else []
    for more in later:
        record = prefixes.read(more, outer=line)
        if record.text:
            found.append(LogLine(record.text, source, number, record.rank, record.host, record.time))
    return found


# ECMA-48: control sequences, commands to the terminal such as its title, and the short escapes.
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])")
_CONTROLS = bytes(code for code in (*range(0x20), 0x7F) if code != ord("\t"))
_LATE_CONTROLS = re.compile("[\x80-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")

_NAMES = ("log", "message", "msg", "textPayload", "line")  # of Docker, Kubernetes' collectors, loggers and Loki
_SIGNS = tuple(f'"{name}":' for name in _NAMES)
_NUMBER = re.compile(r"\s{0,8}\[?(\d{1,8})\]?(?:[:|]\s?|\t|\s{1,2}|$)")
_LEAST = 3
_MOST_NUMBERED = 0.9


def cleaned(raw: bytes) -> str:
    """Return the text of a line. Invalid UTF-8 becomes U+FFFD. Remove characters that change the writing direction."""
    if b"\x1b" in raw:
        raw = _ESCAPES.sub(b"", raw)
    raw = raw.translate(None, _CONTROLS)
    text = raw.decode(errors="replace")
    return text if text.isascii() else _LATE_CONTROLS.sub("", text)


def unpacked(lines: Iterable[tuple[int, str]], *, is_numbered: bool) -> Iterator[tuple[int, str]]:
    """Yield the numbers of lines with the texts in them. ``is_numbered``: every line begins with its number in the log."""
    for number, text in lines:
        if text.startswith("{") and any(sign in text for sign in _SIGNS):
            yield from ((number, inner) for inner in _of_json(text))
        elif is_numbered and (match := _NUMBER.match(text)):
            yield number, text[match.end() :]
        else:
            yield number, text


def _of_json(text: str) -> list[str]:
    """Return the lines of the message in a JSON object; the text itself if it is no such object."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return [text]
    message = (
        next((document[name] for name in _NAMES if name in document), None) if isinstance(document, dict) else None
    )
    if not isinstance(message, str):
        return [text]
    return [cleaned(line.encode(errors="replace")) for line in message.split("\n") if line]


def are_numbered(lines: list[str]) -> bool:
    """Return whether (nearly) every line begins with a number, which is one more than that of the line before."""
    numbers = [int(match[1]) if (match := _NUMBER.match(line)) else None for line in lines if line.strip()]
    steps = sum(
        after is not None and before is not None and after == before + 1
        for before, after in itertools.pairwise(numbers)
    )
    return len(numbers) >= _LEAST and steps >= _MOST_NUMBERED * (len(numbers) - 1)
