"""One thing examined by the doctor: how it is, what was found, and the remedy."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Line:
    """One examination. ``remedy`` is what to do unless the state is ok."""

    name: str
    state: State
    found: str
    remedy: str = ""
