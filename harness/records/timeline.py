"""Memory over time, coarse enough to be kept in every record."""

from harness.spec.frozen import Frozen

MAX_POINTS = 240  # the width of a picture; a rank's record grows by a few KiB


class MemorySeries(Frozen):
    """The highest bytes within each of consecutive intervals of ``interval_s`` seconds, at most ``MAX_POINTS`` of them.

    ``what`` says what was watched and for how long. The highest point is the exact peak of what was watched.
    """

    what: str
    interval_s: float
    max_bytes: tuple[int, ...]
