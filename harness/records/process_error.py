"""Quotes the error of a failed child process from its stderr: the exception that ended it, not the noise around it."""

import re

from harness.records.redact import redact

MAX_QUOTED = 300  # characters
SAID_NOTHING = "it said nothing"

# torch puts this before every line of a traceback once a process group exists, as the tracer has one.
_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):"
# Python prints these exceptions and goes on: they end no process.
_SURVIVED = re.compile(r"Exception ignored |Exception in thread |--- Logging error ---")
# Warnings may come at any time. nanobind (torch, triton) counts leaked objects after the error, when Python unloads it.
_NOISE = re.compile(
    r"nanobind: |\s*- (?:leaked|\.\.\. skipped) |See https://nanobind|.*\b[A-Z]\w*Warning: |\s+warnings\.warn\("
)
_NAMED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)(?::|$)|(?:\S+: )?error: ")
_CPP = re.compile(r"\s*what\(\):\s*(?P<text>\S.*)")


def quoted_error(stderr: bytes | str) -> str:
    """Return one line of at most ``MAX_QUOTED`` characters, without secrets, that says why the process failed.

    It is the first of these that ``stderr`` holds: the exception below the last traceback that Python did not survive, the
    text of a C++ exception, the last line that names an exception or begins with ``error:``, the last line. SAID_NOTHING
    when it holds no line.
    """
    text = stderr.decode(errors="replace") if isinstance(stderr, bytes) else stderr
    every = [line.rstrip() for line in _RANK.sub("", text).splitlines() if line.strip()]
    lines = _without_noise(every)
    found = _raised(lines) or _cpp(lines) or _named(lines) or " ".join((lines or every)[-1:]).strip()
    return redact(found or SAID_NOTHING)[:MAX_QUOTED]


def _without_noise(lines: list[str]) -> list[str]:
    kept, place = [], 0
    while place < len(lines):
        if _SURVIVED.match(lines[place]):
            place += 1 + (lines[place + 1 : place + 2] == [_TRACEBACK])
            place = _below_frames(lines, place)
        elif not _NOISE.match(lines[place]):
            kept.append(lines[place])
        place += 1
    return kept


def _below_frames(lines: list[str], start: int) -> int:
    """Return the line number of the exception, for a traceback whose first frame is line ``start``."""
    return next((at for at in range(start, len(lines)) if not lines[at][0].isspace()), len(lines))


def _raised(lines: list[str]) -> str:
    tracebacks = [at for at, line in enumerate(lines) if line == _TRACEBACK]
    return _whole(lines, _below_frames(lines, tracebacks[-1] + 1)) if tracebacks else ""


def _named(lines: list[str]) -> str:
    named = [at for at, line in enumerate(lines) if _NAMED.match(line)]
    return _whole(lines, named[-1]) if named else ""


def _whole(lines: list[str], at: int) -> str:
    """Line ``at``, with the next one where it only announces it."""
    num_lines = 2 if lines[at:] and lines[at].endswith(":") else 1
    return " ".join(line.strip() for line in lines[at : at + num_lines])


def _cpp(lines: list[str]) -> str:
    return next((found["text"] for line in lines if (found := _CPP.match(line))), "")
