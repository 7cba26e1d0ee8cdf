"""A picture of a report, or the reason why there is none."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Picture:
    """``name`` is the stem of its file; ``caption`` says what to see. ``vega_lite``: the picture's specification as JSON.

    ``vega_lite`` is None where there is no picture, and ``missing`` says why.
    """

    name: str
    title: str
    caption: str
    vega_lite: str | None
    missing: str = ""
