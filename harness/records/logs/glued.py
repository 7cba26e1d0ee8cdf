"""Records that landed on one line, because ranks write to one stream without waiting for each other."""

import re
from collections.abc import Iterator

# How records of training logs begin; a line is cut before each. Inside JSON these are somebody's words.
_BEGINNING = re.compile(
    r"""
    (?<=\S)\s*(?=
        \[(?:rank|default)\d{1,6}\]:
      | \[Rank[ ]\d{1,6}\][ ]\(after[ ]\d
      | \[\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[^\]\s]{0,16}\][ ]iteration\s
      | Step[ ]Time[ ]:[ ]
      | Traceback[ ]\(most[ ]recent[ ]call[ ]last\):
    )
    """,
    re.VERBOSE,
)
_BETWEEN_OBJECTS = re.compile(r'(?<=\})(?=\{")')


def records_in(text: str) -> Iterator[str]:
    """The records of a line, in order; the line itself where nothing begins inside it."""
    start = 0
    boundary = _BETWEEN_OBJECTS if text.startswith("{") else _BEGINNING
    for match in boundary.finditer(text):
        yield text[start : match.start()]
        start = match.end()
    yield text[start:] if start else text
