"""`mbr-perf results --json`: entries and what is not in order."""

from harness.records.inventory import Stored
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
