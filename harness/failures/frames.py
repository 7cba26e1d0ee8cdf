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
PINS = "pin_memory"
"""The moment in which a program locks host memory for the GPU, whatever else it does."""


@dataclass(frozen=True)
class Moment:
    """A moment of a job. ``lasts``: whatever the program does inside it. ``on_host``: advice for the node's memory."""

    name: str
    frames: re.Pattern[str]
    doing: str
    advice: str
    lasts: bool
    has_activations: bool
    on_host: str


@cache
def moments() -> Mapping[str, Moment]:
    """Read the moments of failures.yaml; the first whose frames match counts, so they keep their order."""
    return {
        row["moment"]: Moment(
            row["moment"],
            re.compile("|".join(row["frames"])),
            row.get("doing", ""),
            row.get("next", "") + ("" if row.get("activations", True) else " Recompute frees no memory here."),
            row.get("lasts", False),
            row.get("activations", True),
            row.get("on_host", ""),
        )
        for row in table()["moments"]
    }


def inside(outer: str | None, moment: str | None) -> str | None:
    """Return the moment of a frame that itself shows ``moment``, and whose callers were in ``outer``."""
    return outer if outer and moments()[outer].lasts and moment != PINS else moment or outer


def error_line(text: str, *, in_traceback: bool) -> re.Match[str] | None:
    """Match a line that names an error of Python: group 1 is the name, and the message follows the match."""
    return _ERROR.match(text) or (_RAISED.match(text) if in_traceback else None)


def frame_of(text: str) -> tuple[bool, str | None]:
    """Return whether a line is a frame of a traceback, and the moment that it shows, if any."""
    match = _FRAME.search(text) if "File " in text else None
    frame = f"{match[1]} {match[2]}" if match else ""
    moment = next((each.name for each in moments().values() if match and each.frames.search(frame)), None)
    return match is not None, moment


def moment_in(traceback: str | None) -> str | None:
    """Return the moment that a whole traceback shows; None where it shows none."""
    found = None
    for line in (traceback or "").splitlines():
        found = inside(found, frame_of(line)[1])
    return found
