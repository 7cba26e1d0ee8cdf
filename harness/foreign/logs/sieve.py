"""Splits a log into lines, and leaves out the lines that its reader does not want."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from io import BufferedReader
from itertools import compress
from typing import Any

MAX_PIECE_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 18
_READ_WHOLE = _BLOCK_BYTES  # bytes at the beginning of a log

# ECMA-48: control sequences, commands to the terminal such as its title, and the short escapes.
_ESCAPES = re.compile(
    rb"\x1b(?:\[[0-?]{0,40}[ -/]{0,9}[@-~]|\][^\x07\x1b\n]{0,999}(?:\x07|\x1b\\)|[ -/]{0,9}[0-Z\\^-~])"
)
_CONTROLS = bytes(code for code in (*range(0x20), 0x7F) if code not in b"\t\n\r")
_LATE_CONTROLS = re.compile("[\x80-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")


@dataclass(frozen=True)
class Wanted:
    """The lines that a reader wants: with ``words``, or with one of ``before`` and ``more`` lines after it."""

    words: tuple[str, ...]
    before: tuple[str, ...] = ()
    more: int = 64


_COMMON = {char: place for place, char in enumerate(" etaoinsrhldcumfpgwy")}  # the most common first
_LINE_END = r"[ \t]{0,9}\r?\n"
_LEAST = 4  # characters of a word that are searched, if it has them


def any_of(words: Iterable[str]) -> re.Pattern[bytes]:
    """Compile a fast search that finds every text with one of the words, and a few others, as a tree of characters."""
    root: dict[str, Any] = {}
    for word in words:
        begins = range(max(1, len(word) - _LEAST + 1))
        rarest = max(begins, key=lambda at: _COMMON.get(word[at], len(_COMMON)))
        branch = root
        for char in word[rarest:]:
            branch = branch.setdefault(char, {})
        branch[""] = {}
    # The first character is written plainly: re then skips all other characters.
    first = (re.escape(char) + _tree(below) for char, below in root.items())
    return re.compile("|".join(first).encode() if root else b"(?!)")


def _tree(branch: dict[str, Any]) -> str:
    if "" in branch:  # a word ends here: longer ones add nothing
        return ""
    found = [(_LINE_END if char == "\n" else re.escape(char)) + _tree(below) for char, below in branch.items()]
    return found[0] if len(found) == 1 else f"(?:{'|'.join(found)})"


class Sieve:
    """Finds the wanted lines of a log, block after block."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._more = 0

    @cached_property
    def _searches(self) -> tuple[tuple[re.Pattern[bytes], int], ...]:
        words, before = self._wanted.words, self._wanted.before
        return (any_of((*words, *before)), 1), (any_of(before), 1 + self._wanted.more)

    def chosen(self, block: bytes) -> bytes:
        """Return for every line of the block whether it is wanted."""
        block += b"\n"
        count = block.count(b"\n")
        found = bytearray(count)
        found[: self._more] = b"\1" * min(self._more, count)
        self._more = max(0, self._more - count)
        for pattern, lines in self._searches:
            at = end = 0
            while match := pattern.search(block, end):
                at += block.count(b"\n", end, match.start())
                found[at : at + lines] = b"\1" * min(lines, count - at)
                self._more = max(self._more, at + lines - count)
                end = block.find(b"\n", match.start())
        return bytes(found)


def numbered_pieces(stream: BufferedReader, sieve: Sieve | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield every wanted line with its number, cleaned; also ends at a carriage return. Long lines are split."""
    last: tuple[int, bytes] | None = None
    passed = 0
    for number, raw in _blocks(stream):
        block = cleaned_bytes(raw)
        lines = block.split(b"\n")
        is_whole = sieve is None or passed < _READ_WHOLE
        chosen = b"\1" * len(lines) if is_whole or sieve is None else sieve.chosen(block)
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
        for at in range(0, len(segment), MAX_PIECE_BYTES):
            yield number, segment[at : at + MAX_PIECE_BYTES]


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
            yield number, rest[:MAX_PIECE_BYTES]
            rest = rest[MAX_PIECE_BYTES:]
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
