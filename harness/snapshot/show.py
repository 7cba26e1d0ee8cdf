"""Shows a snapshot in a terminal and as JSON."""

import math
from collections.abc import Iterator
from pathlib import Path

from harness.failures.allocator import judged
from harness.failures.verdict import AllocatorFigures, Confidence, OomClass, OomVerdict, class_name
from harness.show.answer import answer
from harness.show.json import Document, Shown, at
from harness.show.page import GAP, Block, Column, Facts, Line, Page, Table, answer_line, listing, table, tabled
from harness.snapshot.reading import fullest_device, snapshot_summary
from harness.snapshot.values import (
    DeviceMemory,
    FirstFailure,
    Question,
    SnapshotSummary,
    WhatIf,
    WhatIfRow,
    by_module,
)
from harness.units import counted, format_bytes

_MOST_ROWS = 12


class OomPart(Shown):
    """Why the last request failed."""

    oom_class: OomClass = at("oom_class", serialization_alias="class")
    confidence: Confidence
    reason: str
    next_experiment: str
    request_bytes: int | None


class SnapshotDocument(Document):
    """``mbr-perf snapshot FILE --json``. ``device``: the device of ``verdict``, which is null if nothing failed."""

    file: str
    file_bytes: int
    devices: tuple[DeviceMemory, ...]
    device: int
    predicted: str
    verdict: OomPart | None
    what_if: WhatIf | None


def show_snapshot(path: Path, question: Question | None, *, as_json: bool) -> None:
    """Show one file. BadRequestError if it cannot be read, or has no history to replay."""
    summary = snapshot_summary(path, question=question)
    device = fullest_device(summary)
    found = verdict(device)
    document = SnapshotDocument.of(summary, device=device.device, verdict=found)
    answer(lambda: document, lambda: snapshot_page(summary, device, found), as_json=as_json)


def verdict(device: DeviceMemory) -> OomVerdict | None:
    """Judge the last failed request as torch's message of then; free memory of private pools is no room for it."""
    failure = device.failure
    if failure is None:
        return None
    room, free = device.releasable_bytes + device.stranded_bytes, failure.device_free_bytes
    if not failure.is_now:
        used = failure.allocated_then_bytes + device.rounding_bytes + device.private_free_bytes
        room = max(0, failure.reserved_then_bytes - used)
    figures = AllocatorFigures(
        tried_bytes=failure.request_bytes,
        total_bytes=failure.reserved_then_bytes + free,
        free_bytes=free,
        allocated_bytes=failure.reserved_then_bytes - room,
        unallocated_bytes=room,
        private_pool_bytes=device.private_reserved_bytes or None,
    )
    return judged(figures, expandable_segments=device.has_expandable_segments)


def snapshot_page(summary: SnapshotSummary, device: DeviceMemory, verdict: OomVerdict | None) -> Page:
    """Make a page about the fullest device; a line names the others."""
    others = [str(other.device) for other in summary.devices if other.device != device.device]
    also = f" (the file also has device {', '.join(others)})" if others else ""
    facts = [("Snapshot", f"{summary.file}, device {device.device}{also}")]
    if summary.predicted:
        facts += [("Predicted", f"{summary.predicted}; no job has run")]
    if verdict and (failed := device.failure):
        asked_for, left = map(format_bytes, (failed.request_bytes, failed.device_free_bytes))
        facts += [("Request", f"{asked_for}, {left} left on the device"), ("Next", verdict.next_experiment)]
    if asked := summary.what_if:
        blocks: tuple[Block, ...] = (
            *_what_if(asked, "predicted" if summary.predicted else "recorded"),
            Line(_failed(device, verdict)),
        )
        best, *others = (_replayed(asked, row) for row in sorted(asked.rows, key=_need))
        is_choice = len(asked.rows) > 1 and not min(asked.rows, key=_need).failure
        answer = answer_line(f"{'Best: ' * is_choice}{best}", *(f"; {text}" for text in others), ".")
    else:
        blocks, answer = (), answer_line(_failed(device, verdict))
    return Page((*blocks, Facts(tuple(facts), 11), GAP, _sums(device), GAP, *_holders(device)), answer=answer)


def _need(row: WhatIfRow) -> tuple[bool, float, int]:
    return row.failure is not None, math.inf if row.fits_bytes is None else row.fits_bytes, row.reserved_bytes


def _replayed(found: WhatIf, row: WhatIfRow) -> str:
    name = f"{row.settings or 'defaults'}{row.without and f' without {row.without}'}"
    if found.device_bytes is not None and row.failure:
        return f"{name}: {_first_failure(row.failure).partition(':')[0]}"
    return f"{name}: fits in {format_bytes(row.fits_bytes or row.reserved_bytes)}"


def _failed(device: DeviceMemory, verdict: OomVerdict | None) -> str:
    if verdict:
        return f"{class_name(verdict.oom_class)} ({verdict.confidence}): {verdict.reason}"
    none = "The history has no failed request" if device.has_history else "No history, so no failed request"
    held = f"{format_bytes(device.allocated_bytes)} allocated of {format_bytes(device.reserved_bytes)} reserved"
    return f"{device.history_problem or none}: {held}, {format_bytes(device.stranded_bytes)} stranded."


def _sums(device: DeviceMemory) -> Table:
    private = f"of {format_bytes(device.private_reserved_bytes)} in private pools (CUDA graphs)"
    expandable = ", expandable" if device.has_expandable_segments else ""
    blocks = f"{counted(device.num_segments, 'segment')}, {counted(device.num_blocks, 'block')}{expandable}"
    rows = [
        ("reserved", device.reserved_bytes, blocks),
        ("allocated", device.allocated_bytes, f"in use, {format_bytes(device.rounding_bytes)} of it rounding"),
        ("pending", device.pending_bytes, "freed, but another stream may still use it"),
        ("releasable", device.releasable_bytes, "torch.cuda.empty_cache() returns it to the device"),
        ("stranded", device.stranded_bytes, "free, but in a segment with live blocks"),
        ("private free", device.private_free_bytes, private),
        ("largest free", device.largest_free_bytes, "the largest free block outside private pools"),
    ]
    always = ("reserved", "allocated", "stranded", "largest free")
    shown = [(name, format_bytes(size), why) for name, size, why in rows if size or name in always]
    return table(("Memory", "Size", Column("What it is", long=True)), shown, right=("Size",))


def _what_if(found: WhatIf, how: str) -> Iterator[Block]:
    yield (
        f"{counted(found.num_requests, f'{how} request')} replayed on an empty device; "
        f"reserved as {how}: {format_bytes(found.recorded_reserved_bytes)}."
    )
    columns = [
        (Column("Allocator"), lambda row: row.settings or "defaults"),
        (Column("Without", optional=True), lambda row: row.without),
        (Column("Allocated", right=True), lambda row: format_bytes(row.allocated_bytes)),
        (Column("Reserved", right=True), lambda row: format_bytes(row.reserved_bytes)),
        (Column("Fits in", right=True), lambda row: "-" if row.fits_bytes is None else format_bytes(row.fits_bytes)),
    ]
    if found.device_bytes is not None:
        of_device = Column(f"On {format_bytes(found.device_bytes)}", long=True)
        columns.append((of_device, lambda row: _first_failure(row.failure)))
    yield tabled(found.rows, columns)
    yield listing(found.notes)
    yield GAP


def _first_failure(failure: FirstFailure | None) -> str:
    if failure is None:
        return "no request fails"
    if failure.number == 0:
        return "too small for the blocks from before the history"
    where = f", {failure.module}, {failure.site}" if failure.site else ""
    return f"request {failure.number} fails: {format_bytes(failure.request_bytes)}{where}"


def _holders(device: DeviceMemory) -> Iterator[Block]:
    yield f"Memory held now, by megatron-core module (the largest {_MOST_ROWS}; --json has all):"
    shown = [(module, format_bytes(size)) for module, size in by_module(device.holders)[:_MOST_ROWS]]
    yield table(("Module", "Held now"), shown, right=("Held now",))
    yield GAP
    yield "The lines of code that hold most:"
    yield tabled(
        device.holders[:_MOST_ROWS],
        [
            (Column("Module", whole=True), lambda holder: holder.module),
            (Column("Site", long=True), lambda holder: holder.site),
            (Column("Blocks", right=True), lambda holder: str(holder.num_live)),
            (Column("Held now", right=True), lambda holder: format_bytes(holder.live_bytes)),
        ],
    )
