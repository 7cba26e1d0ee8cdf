"""`mbr-perf results --json`: entries and what is not in order."""

from collections.abc import Iterable

from harness.records.inventory import Stored, outcome_of
from harness.records.sweeps import CellData
from harness.report.json import Document


def entry_document(entry: Stored) -> Document:
    """One run or sweep."""
    return {
        "kind": entry.kind,
        "id": entry.id,
        "path": str(entry.path),
        "started_at": entry.when or None,
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
