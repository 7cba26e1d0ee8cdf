"""What the history of one case says of one figure: where its level changed and with what, and where it stands."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.history.change_points import ChangePoint
from harness.analysis.history.changes import Change, changes, notable
from harness.analysis.history.series import Night, Series
from harness.analysis.history.trend import Trend
from harness.analysis.metrics import Metric
from harness.analysis.night.golden_band import GoldenBand

Measured = tuple[tuple[Night, float], ...]


@dataclass(frozen=True)
class LevelChange:
    """``night``: the first of the new level. ``changed``: what else changed there; ``where`` says so if one night off.

    In noise a search for edges may be one night off: where nothing but the everyday changed, the neighbours are looked at.
    """

    point: ChangePoint
    night: Night
    changed: tuple[Change, ...]
    where: str = ""


@dataclass(frozen=True)
class CaseHistory:
    """``measured``: nights that have the figure, oldest first. ``no_points``: why no change points were looked for.

    ``no_golden`` says why there is no ``golden``; ``trend`` is None where nothing was measured.
    """

    series: Series
    metric: Metric
    measured: Measured
    level_changes: tuple[LevelChange, ...]
    no_points: str
    trend: Trend | None
    golden: GoldenBand | None
    no_golden: str

    def is_better(self, fraction: float) -> bool | None:
        """Whether a change in this direction is welcome; None for a figure that should stay equal."""
        return None if self.metric.better == "equal" else (fraction > 0) == (self.metric.better == "higher")


def level_changes(measured: Measured, points: Sequence[ChangePoint]) -> tuple[LevelChange, ...]:
    """Each point with what changed at it."""
    return tuple(_explained(measured, point) for point in points)


def _explained(measured: Measured, point: ChangePoint) -> LevelChange:
    nights = [night for night, _ in measured]
    here = _changes_at(nights, point.index)
    for offset, where in ((0, ""), (-1, "one night before"), (1, "one night after")):
        found = _changes_at(nights, point.index + offset)
        if notable(found):
            return LevelChange(point, nights[point.index], found, where)
    return LevelChange(point, nights[point.index], here)


def _changes_at(nights: Sequence[Night], index: int) -> tuple[Change, ...]:
    return changes(nights[index - 1], nights[index]) if 0 < index < len(nights) else ()
