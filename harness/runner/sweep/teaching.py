"""What an out-of-memory teaches: settings of the same layout that are predicted to need no less need not be tried."""

from collections.abc import Iterable, Iterator

from harness.records.run import RunRecord
from harness.records.sweep import PlannedCell
from harness.units import format_bytes

Lesson = tuple[PlannedCell, str]
"""A cell that cannot fit, and why."""


def lessons(taught_by: PlannedCell, record: RunRecord, others: Iterable[PlannedCell]) -> Iterator[Lesson]:
    """Those of ``others`` that differ from ``taught_by`` in recompute only and need as much on a stage that ran out.

    Absolute predictions may be off; of two settings of one layout, the one predicted larger is the larger one.
    """
    stages = sorted({rank.coordinates.pp for rank in record.ranks if rank.failure and rank.failure.kind == "oom"})
    for other in others:
        if other.index == taught_by.index or not _same_layout(taught_by, other):
            continue
        for stage in stages:
            least, needed = _predicted(taught_by, stage), _predicted(other, stage)
            if least is not None and needed is not None and needed >= least:
                yield (
                    other,
                    (
                        f"predicted to need {format_bytes(needed)} on stage {stage}, where {taught_by.name} "
                        f"with {format_bytes(least)} ran out of memory"
                    ),
                )
                break


def _same_layout(one: PlannedCell, other: PlannedCell) -> bool:
    if one.spec is None or other.spec is None:
        return False
    return one.spec.model_copy(update={"recompute": other.spec.recompute}) == other.spec


def _predicted(cell: PlannedCell, stage: int) -> int | None:
    rows = cell.prediction.stages if cell.prediction else ()
    return next((row.total for row in rows if row.pp_rank == stage), None)
