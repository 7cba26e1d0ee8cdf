"""How much longer one setting takes than another, with its uncertainty where there are enough repeats."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis import statistics
from harness.analysis.student_t import t_quantile

MIN_RUNS = 3  # per side, for an interval: from two runs the 95 % quantile is 4 to 13 standard errors wide
CONFIDENCE = 0.95


@dataclass(frozen=True)
class TimeChange:
    """Cell against control: seconds per step and the fraction of the control's. ``interval``: 95 %, as fractions.

    ``interval`` is None below :data:`MIN_RUNS` repeats per side. ``basis`` says in words what the figure rests on.
    """

    seconds: float
    fraction: float
    interval: tuple[float, float] | None
    basis: str

    @property
    def is_settled(self) -> bool | None:
        """Whether the sign of the change is beyond doubt; None where there is no interval."""
        return None if self.interval is None else not self.interval[0] <= 0 <= self.interval[1]


def time_change(
    cell: Sequence[float],
    control: Sequence[float],
    steps: tuple[float | None, float | None],
    against: str = "control",
) -> TimeChange:
    """Change of the mean over repeats; each value is one run's median step time in seconds.

    ``against``: what the control is called. ``steps``: relative spread of the steps of cell and control, stated where
    there is one run of each. ValueError for an empty side.
    """
    ours, theirs = statistics.mean(cell), statistics.mean(control)
    half = half_width(cell, control)
    change = (ours - theirs) / theirs
    interval = None if half is None else (change - half / theirs, change + half / theirs)
    return TimeChange(ours - theirs, change, interval, _basis(cell, control, steps, against))


def half_width(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Half of Welch's 95 % interval of the difference of two means; None below :data:`MIN_RUNS` values on a side.

    Welch (1947): variances are not taken for equal, degrees of freedom by Satterthwaite. Worked example:
    (1, 2, 3) and (2, 4, 6) have standard error 1.291 and 2.94 degrees of freedom, so the half width is 4.155.
    """
    if min(len(one), len(other)) < MIN_RUNS:
        return None
    parts = [((statistics.sample_stdev(side) or 0.0) ** 2 / len(side), len(side)) for side in (one, other)]
    error = sum(part for part, _ in parts)
    if error == 0:
        return 0.0
    degrees = error**2 / sum(part**2 / (n - 1) for part, n in parts)
    return t_quantile((1 + CONFIDENCE) / 2, degrees) * math.sqrt(error)


def _basis(
    cell: Sequence[float], control: Sequence[float], steps: tuple[float | None, float | None], against: str
) -> str:
    if min(len(cell), len(control)) >= MIN_RUNS:
        return f"95 % interval by Welch's t, {len(cell)} and {len(control)} runs"
    counted = f"{len(cell)} and {len(control)} runs, too few for an interval"
    told = [text for text in (_spread("this cell", cell, steps[0]), _spread(against, control, steps[1])) if text]
    return f"{counted}; {', '.join(told)}" if told else counted


def _spread(who: str, runs: Sequence[float], steps: float | None) -> str:
    if len(runs) > 1:
        return f"runs of {who} differ by {(max(runs) - min(runs)) / statistics.mean(runs) * 100:.1f} %"
    return "" if steps is None else f"steps of {who} spread by {steps * 100:.1f} % (standard deviation)"
