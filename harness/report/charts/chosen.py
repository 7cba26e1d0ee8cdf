"""Which cells a picture with a part per cell shows where there are too many for all."""

from harness.analysis.sweep.values import SweepVerdict
from harness.records.sweeps import CellData, SweepData
from harness.units import counted

MAX_CELLS = 12


def chosen(data: SweepData, verdict: SweepVerdict) -> tuple[CellData, ...]:
    """Cells with a run that ended well, in the plan's order.

    Of more than :data:`MAX_CELLS` the control, the recommended cell, the Pareto set, then the first others.
    """
    first = [verdict.control, verdict.recommendation.cell, *verdict.pareto]
    able = _able(data)
    by_interest = sorted(able, key=lambda c: first.index(c.planned.name) if c.planned.name in first else len(first))
    names = {cell.planned.name for cell in by_interest[:MAX_CELLS]}
    return tuple(cell for cell in able if cell.planned.name in names)


def left_out(data: SweepData) -> str:
    """What is to be said of cells that were not chosen; empty where all were."""
    missing = len(_able(data)) - MAX_CELLS
    return (
        f" Left out here: {counted(missing, 'further cell')} that ran; the table and report.json have them."
        if missing > 0
        else ""
    )


def _able(data: SweepData) -> list[CellData]:
    return [cell for cell in data.cells if any(run.status == "ok" for run in cell.runs)]
