"""``mbr-perf snapshot --json``."""

from harness.analysis.oom.verdict import OomVerdict
from harness.analysis.snapshots.difference import SnapshotDifference
from harness.analysis.snapshots.values import DeviceMemory, SnapshotSummary
from harness.report.json import SCHEMA_VERSION, Document


def snapshot_document(
    summary: SnapshotSummary, device: DeviceMemory, verdict: OomVerdict | None
) -> Document:  # fmt: skip
    """``device`` is the one that ``verdict`` is about; ``verdict`` is null where nothing failed."""
    return {
        "schema_version": SCHEMA_VERSION,
        **summary.model_dump(mode="json"),
        "device": device.device,
        "verdict": _verdict(verdict),
    }


def difference_document(summaries: tuple[SnapshotSummary, SnapshotSummary], found: SnapshotDifference) -> Document:
    """Rows with ``more_bytes``: what the second, ``after``, holds more than the first."""
    dumped = found.model_dump(mode="json")
    for kind, rows in (("modules", found.modules), ("sites", found.sites)):
        dumped[kind] = [{**row.model_dump(mode="json"), "more_bytes": row.more_bytes} for row in rows]
    return {
        "schema_version": SCHEMA_VERSION,
        "before": summaries[0].file,
        "after": summaries[1].file,
        "difference": dumped,
    }


def _verdict(verdict: OomVerdict | None) -> dict[str, object] | None:
    if verdict is None:
        return None
    return {
        "class": verdict.oom_class,
        "confidence": verdict.confidence,
        "reason": verdict.reason,
        "next_experiment": verdict.next_experiment,
        "request_bytes": verdict.request_bytes,
    }
