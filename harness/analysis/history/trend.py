"""Where a figure stands: the newest night against the ones before it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.analysis.metrics import Better
from harness.analysis.night.noise import known_noise
from harness.analysis.student_t import t_quantile

TrendWord = Literal["new", "steady", "better", "worse", "other"]

# Nights before the newest that its level is taken from, and how many of them it takes to know their noise.
LOOK_BACK, _LEAST = 20, 3
_CONFIDENCE = 0.99
_SMALLEST = 0.002


@dataclass(frozen=True)
class Trend:
    """``change`` of the newest night against the level of those before it, a fraction; ``allowed``: what noise explains.

    ``other``: a figure that should stay equal, and does not. All but the word are None for a case that is ``new``.
    """

    word: TrendWord
    level: float | None = None
    change: float | None = None
    allowed: float | None = None


def trend(values: Sequence[float], better: Better) -> Trend:
    """The last of ``values``, one per night, against up to :data:`LOOK_BACK` before it; ValueError for no values.

    Level and noise are those that the gate takes from history (`analysis.noise`): since the last step, if there is one.
    Steady is what lies within the 99 % prediction interval of Student's t, and any change of less than 0.2 %. It is for
    reading: the gate judges by goldens and repeats.
    """
    if not values:
        raise ValueError("no values")
    known = known_noise([(value,) for value in values[-LOOK_BACK - 1 : -1]])
    if known is None or known.level is None or known.night_df < _LEAST - 1:
        return Trend("new")
    change = (values[-1] - known.level) / known.level
    quantile = t_quantile((1 + _CONFIDENCE) / 2, known.night_df)
    allowed = max(_SMALLEST, quantile * known.night_sd * math.sqrt(1 + 1 / known.num_nights))
    return Trend(_word(change, allowed, better), known.level, change, allowed)


def _word(change: float, allowed: float, better: Better) -> TrendWord:
    if abs(change) <= allowed:
        return "steady"
    if better == "equal":
        return "other"
    return "better" if (change > 0) == (better == "higher") else "worse"
