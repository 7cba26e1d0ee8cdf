"""Takes the lines of a log out of what a collector made of them: JSON objects, or lines with their numbers."""

import itertools
import json
import re
from collections.abc import Iterable, Iterator

from harness.records.logs.cleaning import cleaned

_NAMES = ("log", "message", "msg", "textPayload", "line")  # of Docker, Kubernetes' collectors, loggers and Loki
_SIGNS = tuple(f'"{name}":' for name in _NAMES)
_NUMBER = re.compile(r"\s{0,8}\[?(\d{1,8})\]?(?:[:|]\s?|\t|\s{1,2}|$)")
_LEAST = 3
_MOST_NUMBERED = 0.9


def unpacked(lines: Iterable[tuple[int, str]], head: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the numbers of lines with the texts in them. ``head``: the first lines, which show whether all have numbers."""
    is_numbered = _are_numbered(head)
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


def _are_numbered(lines: list[str]) -> bool:
    """Return whether (nearly) every line begins with a number, which is one more than that of the line before."""
    numbers = [int(match[1]) if (match := _NUMBER.match(line)) else None for line in lines if line.strip()]
    steps = sum(
        after is not None and before is not None and after == before + 1
        for before, after in itertools.pairwise(numbers)
    )
    return len(numbers) >= _LEAST and steps >= _MOST_NUMBERED * (len(numbers) - 1)
