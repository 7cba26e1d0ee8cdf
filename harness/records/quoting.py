"""Quotes the error of a failed process in one line without secrets."""

import re

from harness.records.redact import redact

MAX_QUOTED = 300  # characters
NO_ERROR_TEXT = "no error text"

# Removed before the error is looked for: what torch puts before every line of a traceback once a process group exists,
# exceptions that Python prints and survives, and warnings. nanobind (torch, triton) counts leaked objects at the end.
_RANKS = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
_FRAMES = r"Traceback \(most recent call last\):(?:\n[ \t].*)*"
_NOISE = re.compile(
    rf"^(?:(?:Exception ignored |Exception in thread |--- Logging error ---).*(?:\n{_FRAMES}(?:\n\S.*)?)?"
    r"|(?:nanobind: |\s*- (?:leaked|\.\.\. skipped) |See https://nanobind|.*\b[A-Z]\w*Warning: "
    r"|\s+warnings\.warn\().*)(?:\n|\Z)",
    re.MULTILINE,
)
_ERRORS = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        rf"^{_FRAMES}\n(\S.*(?:(?<=:)\n.*)?)",  # a line that ends with a colon only announces the next
        r"^\s*what\(\):\s*(\S.*)",
        r"^((?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)(?::|$)|(?:\S+: )?error: ).*(?:(?<=:)\n.*)?)",
        r"^(.+)",
    )
)


def quoted_error(stderr: bytes | str) -> str:
    """Return one line, without secrets, that says why the process failed: the last of the first kind of ``_ERRORS``."""
    text = stderr.decode(errors="replace") if isinstance(stderr, bytes) else stderr
    text = "\n".join(line.rstrip() for line in _RANKS.sub("", text).splitlines() if line.strip())
    text = _NOISE.sub("", text) or text
    found = next((every[-1] for error in _ERRORS if (every := error.findall(text))), NO_ERROR_TEXT)
    return redact(" ".join(line.strip() for line in found.splitlines()))[:MAX_QUOTED]
