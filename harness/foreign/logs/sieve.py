"""Splits a log into lines, and leaves out the lines that its reader does not want."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from itertools import compress

MAX_PIECE_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 18
_READ_WHOLE = _BLOCK_BYTES  # bytes at the beginning of a log
_MOST_SHAPES = 50_000
_LONGEST_SHAPE = 1000

# ECMA-48: control sequences, commands to the terminal such as its title, and the short escapes.
_ESCAPES = re.compile(
    rb"\x1b(?:\[[0-?]{0,40}[ -/]{0,9}[@-~]|\][^\x07\x1b\n]{0,999}(?:\x07|\x1b\\)|[ -/]{0,9}[0-Z\\^-~])"
)
_CONTROLS = bytes(code for code in (*range(0x20), 0x7F) if code not in b"\t\n\r")
_LATE_CONTROLS = re.compile("[\x80-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
_DIGITS = b"0123456789"


@dataclass(frozen=True)
class Wanted:
    """The lines that a reader wants: with one of ``words``, and with one of ``before`` and ``more`` lines after it.

    The beginning and the last line of a log are always read. Digits in words do not count.
    """

    words: tuple[str, ...]
    before: tuple[str, ...] = ()
    more: int = 64


@dataclass
class Sieve:
    """Remembers the shapes of lines, which are lines without digits: logs repeat them."""

    wanted: Wanted
    _seen: dict[bytes, int] = field(default_factory=dict)
    _more: int = 0

    def __post_init__(self) -> None:
        self._words, self._before = (
            tuple(word.encode().translate(None, _DIGITS) for word in words)
            for words in (self.wanted.words, self.wanted.before)
        )

    def chosen(self, block: bytes) -> list[int]:
        """Return for every line of the block whether it is wanted."""
        shapes = block.translate(None, _DIGITS).split(b"\n")
        if len(self._seen) > _MOST_SHAPES:
            self._seen.clear()
        seen = self._seen
        found = [seen[shape] if shape in seen else self._kind(shape) for shape in shapes]
        if not self._more and 2 not in found:
            return found
        for at, kind in enumerate(found):
            if kind > 1:
                self._more = self.wanted.more
            elif self._more:
                self._more -= 1
                found[at] = 1
        return found

    def _kind(self, shape: bytes) -> int:
        kind = 2 if any(word in shape for word in self._before) else int(any(word in shape for word in self._words))
        if len(shape) <= _LONGEST_SHAPE:
            self._seen[shape] = kind
        return kind


def numbered_pieces(stream: BufferedReader, sieve: Sieve | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield every line that is wanted with its number, without its line end, and cleaned. Split long lines.

    A line also ends at a carriage return. A long line is cut at the last space or NUL byte in its second half, if there
    is one.
    """
    last: tuple[int, bytes] | None = None
    passed = 0
    for number, block in _blocks(stream):
        lines = cleaned_bytes(block).split(b"\n")
        is_whole = sieve is None or passed < _READ_WHOLE
        chosen = [1] * len(lines) if is_whole or sieve is None else sieve.chosen(b"\n".join(lines))
        passed += len(block)
        at = len(lines) - 1
        while at > 0 and not lines[at].strip():
            at -= 1
        last = None if chosen[at] else (number + at, lines[at])
        for place, line in compress(enumerate(lines, number), chosen):
            yield from _pieces(place, line)
    if last:
        yield from _pieces(*last)


def _pieces(number: int, line: bytes) -> Iterator[tuple[int, bytes]]:
    for segment in line.split(b"\r"):
        rest = segment
        while len(rest) > MAX_PIECE_BYTES:
            cut = _cut(rest)
            yield number, rest[:cut]
            rest = rest[cut:]
        if rest:
            yield number, rest


def _cut(line: bytes) -> int:
    cuts = (line.rfind(blank, MAX_PIECE_BYTES // 2, MAX_PIECE_BYTES) for blank in (b" ", b"\0"))
    return max(*cuts, 0) or MAX_PIECE_BYTES


def _blocks(stream: BufferedReader) -> Iterator[tuple[int, bytes]]:
    """Yield whole lines, with the number of the first; a line that is longer than a piece in parts."""
    number, rest = 1, b""
    while data := stream.read1(_BLOCK_BYTES):
        rest += data
        end = rest.rfind(b"\n")
        if end >= 0:
            yield number, rest[:end]
            number += rest.count(b"\n", 0, end + 1)
            rest = rest[end + 1 :]
        while len(rest) >= MAX_PIECE_BYTES:
            cut = _cut(rest)
            yield number, rest[:cut]
            rest = rest[cut:]
    if rest:
        yield number, rest


def cleaned_bytes(raw: bytes) -> bytes:
    """Remove escapes and control characters, without line ends and tabs."""
    if b"\x1b" in raw:
        raw = _ESCAPES.sub(b"", raw)
    return raw.translate(None, _CONTROLS)


def as_text(raw: bytes) -> str:
    """Decode a cleaned line. Invalid UTF-8 becomes U+FFFD. Remove characters that change the writing direction."""
    text = raw.decode(errors="replace")
    return text if text.isascii() else _LATE_CONTROLS.sub("", text)
