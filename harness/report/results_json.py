"""`mbr-perf results --json`: entries and what is not in order."""

from collections.abc import Iterable

from harness.records.inventory import Stored, case_state, outcome_of
from harness.records.nights import NightCase
from harness.records.sweeps import CellData
from harness.report.json import Document


def entry_document(entry: Stored) -> Document:
    """One run, sweep or night."""
    return {
        "kind": entry.kind,
        "id": entry.id,
        "path": str(entry.path),
        "started_at": entry.when or None,
        "is_start_known": entry.is_start_known,
        "recipe": entry.recipe or None,
        "state": entry.state,
        "detail": entry.detail,
        "bytes": entry.num_bytes,
    }


def cell_documents(cells: Iterable[CellData]) -> list[Document]:
    """The cells of a sweep as they lie on disk, unjudged."""
    return [
        {
            "name": cell.planned.name,
            "state": outcome_of(cell),
            "reason": cell.reason,
            "runs": [run.run_id for run in cell.runs],
        }
        for cell in cells
    ]


def case_documents(cases: Iterable[NightCase]) -> list[Document]:
    """The cases of a night as they lie on disk, unjudged."""
    return [
        {
            "name": case.planned.name,
            "state": case_state(case),
            "reason": case.planned.refused,
            "runs": [run.record.run_id for run in case.runs if run.record],
        }
        for case in cases
    ]
