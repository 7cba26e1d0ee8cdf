"""`mbr-perf golden ... --json`, where it is more than one golden."""

from collections.abc import Sequence
from pathlib import Path

from harness.explain.contrast import contrast
from harness.explain.judge import changes
from harness.explain.values import Side, contrast_document, side_document
from harness.records.golden import GoldenRecord
from harness.records.goldens import GoldenChange
from harness.showing.json import SCHEMA_VERSION, Document, golden_document

Row = tuple[str, Path, GoldenRecord, tuple[GoldenChange, ...]]


def promotions_document(
    prepared: Sequence[Row],
    refused: Sequence[tuple[str, Sequence[str]]],
    left_out: Sequence[tuple[str, str]],
    *,
    is_written: bool,
) -> Document:
    """What a night's promotion wrote, by case, what it refused, and what it did not look at."""
    return {
        "schema_version": SCHEMA_VERSION,
        "is_written": is_written,
        "promoted": [{"case": name, **golden_document(path, golden, told)} for name, path, golden, told in prepared],
        "refused": [{"case": name, "problems": list(problems)} for name, problems in refused],
        "left_out": [{"case": name, "reason": reason} for name, reason in left_out],
        "exit_code": 0,
    }


def difference_document(before: Side, after: Side) -> Document:
    """`golden diff --json`."""
    found = contrast(after, before)
    return {
        "schema_version": SCHEMA_VERSION,
        "before": side_document(before),
        "after": side_document(after),
        "metrics": [
            {
                "metric": change.metric,
                "before": change.theirs,
                "after": change.ours,
                "change": change.change,
                "spread_before": before.spreads.get(change.metric),
                "spread_after": after.spreads.get(change.metric),
            }
            for change in changes(after, before)
        ],
        "differences": [
            {"group": each.group, "name": each.name, "before": each.theirs, "after": each.ours}
            for each in found.departures
        ],
        **contrast_document(found, ours="after", theirs="before"),
        "exit_code": 0,
    }


def retired_document(path: Path, golden: GoldenRecord, before: Path) -> Document:
    """`golden retire --json`: where it lies now, and where it lay."""
    return {**golden_document(path, golden), "retired_from": str(before)}
