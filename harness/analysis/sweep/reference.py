"""Which cell the others are held against where the control cannot be: without one, no setting would have a price."""

from collections.abc import Sequence

from harness.analysis import statistics
from harness.analysis.sweep.cell import MeasuredCell

# What can still run is waited for, and what is in doubt is told; these never have figures.
_LOST = frozenset({"pruned", "oom", "failed", "illegal", "skipped_inert"})


def stand_in(cells: Sequence[MeasuredCell], control: MeasuredCell) -> MeasuredCell | None:
    """The fastest cell that ran and is not in doubt, by the same tokens; None where the control may have figures."""
    if control.status not in _LOST:
        return None
    able = [cell for cell in cells if cell.status == "ok" and not cell.doubts and cell.costs_s and _has_peak(cell)]
    return min(able, key=lambda cell: statistics.mean(cell.costs_s), default=None)


def _has_peak(cell: MeasuredCell) -> bool:
    return cell.metrics is not None and cell.metrics.peak_allocated_bytes is not None
