"""Records that landed on one line, because ranks write to one stream without waiting for each other."""

import re
from collections.abc import Iterator

# How records of training logs begin; a line is cut before each. Inside JSON these are somebody's words.
_BEGINNING = re.compile(
    r"\[(?:rank|default)\d{1,6}\]:"
    r"|\[Rank \d{1,6}\] \(after \d"
    r"|\[\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[^\]\s]{0,16}\] iteration\s"
    r"|Step Time : "
    r"|Traceback \(most recent call last\):"
)
# Without any of these nothing begins inside a line: looking for them is much cheaper.
_SIGNS = ("[", "Step Time : ", "Traceback (")
_BETWEEN_OBJECTS = re.compile(r'(?<=\})(?=\{")')


def records_in(text: str) -> Iterator[str]:
    """The records of a line, in order; the line itself where nothing begins inside it."""
    if not text.startswith("{") and not any(sign in text[1:] for sign in _SIGNS):
        yield text
        return
    start = 0
    boundary = _BETWEEN_OBJECTS if text.startswith("{") else _BEGINNING
    for match in boundary.finditer(text, 1):
        yield text[start : match.start()].strip()
        start = match.start()
    yield text[start:]
