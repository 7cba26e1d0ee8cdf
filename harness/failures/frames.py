"""Reads tracebacks: the moment of the job, what to do in it, and the name of the error."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from harness.failures.verdict import table

_ERROR = re.compile(
    r"(?:E {2,8})?(?:[A-Za-z_]\w{0,99}\.){0,9}([A-Za-z_]\w{0,99}(?:Error|Exception|Failure|Interrupt|Exit|Iteration)"
    r"|Exception)(?::(?!:)\s{0,4}|$| (?=assert ))"
)
# Below a traceback, also names such as triton.runtime.errors.OutOfResources.
_RAISED = re.compile(r"(?:[a-z_]\w{0,99}\.){1,9}([A-Z]\w{0,99})(?::\s{1,4}|$)")
_FRAME = re.compile(r'File "([^"]{1,500})", line \d{1,7}, in (\S{1,100})')
_PINS = re.compile(r"_?pin_memory")


@dataclass(frozen=True)
class Moment:
    """A moment of a job. ``doing``: empty if only its name is known. ``lasts``: whatever the program does inside it."""

    name: str
    frames: re.Pattern[str]
    doing: str
    advice: str
    lasts: bool
    has_activations: bool


@cache
def moments() -> Mapping[str, Moment]:
    """Return the moments of failures.yaml by name."""
    return {
        row["moment"]: Moment(
            row["moment"],
            re.compile("|".join(row["frames"])),
            row.get("doing", ""),
            row.get("next", ""),
            row.get("lasts", False),
            row.get("activations", True),
        )
        for row in table()["moments"]
    }


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of a traceback. ``moment``: None where it shows none. ``pins``: it locks host memory for the GPU."""

    moment: str | None
    pins: bool

    def inside(self, outer: str | None) -> str | None:
        """Return the moment of this frame, whose callers were in ``outer``."""
        return outer if outer and moments()[outer].lasts else self.moment or outer


def error_line(text: str, *, in_traceback: bool) -> re.Match[str] | None:
    """Match a line that names an error of Python: group 1 is the name, and the message follows the match."""
    return _ERROR.match(text) or (_RAISED.match(text) if in_traceback else None)


def frame_of(text: str) -> Frame | None:
    """Return what a frame of a traceback shows; None for another line."""
    match = _FRAME.search(text) if "File " in text else None
    if match is None:
        return None
    frame = f"{match[1]} {match[2]}"
    moment = next((each.name for each in moments().values() if each.frames.search(frame)), None)
    return Frame(moment, _PINS.fullmatch(match[2]) is not None)


def moment_in(traceback: str | None) -> str | None:
    """Return the moment that a whole traceback shows; None where it shows none."""
    found = None
    for line in (traceback or "").splitlines():
        if frame := frame_of(line):
            found = frame.inside(found)
    return found
