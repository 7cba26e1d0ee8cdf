"""Reads tracebacks: the phase of training, what to do in it, and the name of the error."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from harness.failures.verdict import table
from harness.records.rank import Phase

_ERROR = re.compile(
    r"(?:E {2,8})?(?:[A-Za-z_]\w{0,99}\.){0,9}([A-Za-z_]\w{0,99}(?:Error|Exception|Failure|Interrupt|Exit|Iteration)"
    r"|Exception)(?::(?!:)\s{0,4}|$| (?=assert ))"
)
# Below a traceback, also names such as triton.runtime.errors.OutOfResources.
_RAISED = re.compile(r"(?:[a-z_]\w{0,99}\.){1,9}([A-Z]\w{0,99})(?::\s{1,4}|$)")
_FRAME = re.compile(r'File "([^"]{1,500})", line \d{1,7}, in (\S{1,100})')
_PINS = re.compile(r"_?pin_memory")


@cache
def _phases() -> tuple[tuple[re.Pattern[str], Phase], ...]:
    return tuple((re.compile("|".join(row["frames"])), row["phase"]) for row in table()["phases"])


@cache
def in_setup() -> Mapping[Phase, tuple[str, str]]:
    """Return, by phase before the first training step, what the program did, and what to do if the GPU was full."""
    return {row["phase"]: (row["doing"], row["next"]) for row in table()["phases"] if "doing" in row}


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of a traceback. ``phase``: None where it shows none. ``pins``: it locks host memory for the GPU."""

    phase: Phase | None
    pins: bool


def error_line(text: str, *, in_traceback: bool) -> re.Match[str] | None:
    """Match a line that names an error of Python: group 1 is the name, and the message follows the match."""
    return _ERROR.match(text) or (_RAISED.match(text) if in_traceback else None)


def frame_of(text: str) -> Frame | None:
    """Return what a frame of a traceback shows; None for another line."""
    match = _FRAME.search(text) if "File " in text else None
    if match is None:
        return None
    frame = f"{match[1]} {match[2]}"
    phase = next((phase for pattern, phase in _phases() if pattern.search(frame)), None)
    return Frame(phase, _PINS.fullmatch(match[2]) is not None)
