"""Makes text of the bytes of a line, and takes lines out of what a collector made of them: JSON objects, or lines with their numbers."""

import itertools
import json
import re
from collections.abc import Iterable, Iterator

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
