"""How sure it is that two sets of runs of one setting differ."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis import statistics
from harness.analysis.student_t import t_quantile, t_upper_tail

MAX_PAIRS = 50
"""More would keep the machine longer than they make the A/A surer: these find half the noise of one run."""


@dataclass(frozen=True)
class TwoSampleT:
    """Means of either side, (second - first) / first, and how likely chance alone makes as much; ``noise`` of one run.

    ``p_value`` is two-sided; ``noise`` is the standard deviation within the sides over the mean of all runs; ``error`` that of
    ``change`` with its ``degrees`` of freedom.
    """

    first: float
    second: float
    change: float
    p_value: float
    noise: float
    error: float
    degrees: int

    def visible(self, alpha: float) -> float:
        """The smallest relative change whose p-value would be ``alpha``."""
        return self.error * t_quantile(1 - alpha / 2, self.degrees)


def two_sample_t(first: Sequence[float], second: Sequence[float]) -> TwoSampleT:
    """Student's t of two samples with one variance (two runs on each side at least), values above 0.

    Worked example: (100, 102) against (103, 105) differ by 3 with a standard error of 1.414: t = 2.12 with 2 degrees of
    freedom, p = 0.168.
    """
    a, b = statistics.mean(first), statistics.mean(second)
    squares = math.fsum((x - a) ** 2 for x in first) + math.fsum((x - b) ** 2 for x in second)
    degrees = len(first) + len(second) - 2
    variance = squares / degrees
    error = math.sqrt(variance * (1 / len(first) + 1 / len(second)))
    p_value = float(a == b) if error == 0 else min(1.0, 2 * t_upper_tail(abs(b - a) / error, degrees))
    noise = math.sqrt(variance) / statistics.mean((*first, *second))
    return TwoSampleT(a, b, b / a - 1, p_value, noise, error / a, degrees)


def pairs_that_show(change: float, noise: float, alpha: float) -> int | None:
    """The fewest pairs whose smallest visible change is ``change`` where one run varies by ``noise``; None: over MAX_PAIRS."""
    return next((pairs for pairs in range(2, MAX_PAIRS + 1) if _visible(pairs, noise, alpha) <= change), None)


def _visible(pairs: int, noise: float, alpha: float) -> float:
    return noise * math.sqrt(2 / pairs) * t_quantile(1 - alpha / 2, 2 * pairs - 2)
