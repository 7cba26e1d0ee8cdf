"""Shows a snapshot in a terminal, as JSON and as a page."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.failures.verdict import OomVerdict
from harness.show import json
from harness.show.charts.drawing import require_chart
from harness.show.page import GAP, Block, Column, Facts, Page, Table, listing, table, tabled
from harness.show.terminal import show_page
from harness.snapshot.judge import verdict
from harness.snapshot.reading import fullest_device, snapshot_summaries, snapshot_summary
from harness.snapshot.values import (
    DeviceMemory,
    HeldMore,
    Holder,
    SnapshotDifference,
    SnapshotSummary,
    difference,
)
from harness.units import counted, format_bytes

_MOST_MODULES, _MOST_SITES, _MOST_POOLS = 12, 12, 3


def snapshot_page(summary: SnapshotSummary, device: DeviceMemory, verdict: OomVerdict | None) -> Page:
    """Make a page about the fullest device; a line names the others."""
    return Page((*about_snapshot(summary, device, verdict), *_holders(device)))


def about_snapshot(summary: SnapshotSummary, device: DeviceMemory, verdict: OomVerdict | None) -> tuple[Block, ...]:
    """Return the page without the tables of holders."""
    others = [str(other.device) for other in summary.devices if other.device != device.device]
    also = f" (the file also has device {', '.join(others)})" if others else ""
    facts = [("Snapshot", f"{summary.file}, device {device.device}{also}"), *_failed(device, verdict)]
    return Facts(tuple(facts), 10), GAP, _sums(device), GAP


def _failed(device: DeviceMemory, verdict: OomVerdict | None) -> list[tuple[str, str]]:
    if verdict is None:
        text = device.history_problem or "the history has no failed request"
        if not device.levels and not device.history_problem:
            text = "the snapshot has no history, so no failed request"
        return [("Failure", text)]
    more = f" ({device.num_failures} failed; this is the last)" if device.num_failures > 1 else ""
    return [("Failure", f"{verdict.line}{more}"), ("", verdict.reason), ("Next", verdict.next_experiment)]


def _sums(device: DeviceMemory) -> Table:
    expandable = ", expandable" if device.has_expandable_segments else ""
    rows = [
        (
            "reserved",
            device.reserved_bytes,
            f"{counted(device.num_segments, 'segment')}, {counted(device.num_blocks, 'block')}{expandable}",
        ),
        ("allocated", device.allocated_bytes, _rounding(device)),
        ("pending", device.pending_bytes, "freed, but another stream may still use it"),
        ("releasable", device.releasable_bytes, "torch.cuda.empty_cache() returns it to the device"),
        ("stranded", device.stranded_bytes, "free, but in a segment with live blocks"),
        ("private free", device.private_free_bytes, _pools(device)),
        ("largest free", device.largest_free_bytes, "the largest free block outside private pools"),
    ]
    always = ("reserved", "allocated", "stranded", "largest free")
    shown = [(name, format_bytes(size), why) for name, size, why in rows if size or name in always]
    return table(("Memory", "Size", Column("What it is", long=True)), shown, right=("Size",))


def _rounding(device: DeviceMemory) -> str:
    if device.rounding_bytes is None:
        return "in use; the snapshot lacks the requested sizes"
    return f"in use, {format_bytes(device.rounding_bytes)} of it rounding"


def _pools(device: DeviceMemory) -> str:
    pools = device.private_pools
    named = [f"{pool.pool} {format_bytes(pool.reserved_bytes)}" for pool in pools[:_MOST_POOLS]]
    more = f" and {len(pools) - _MOST_POOLS} more" if len(pools) > _MOST_POOLS else ""
    return f"in private pools (CUDA graphs), reserved: {', '.join(named)}{more}"


def _holders(device: DeviceMemory) -> Iterator[Block]:
    at_peak = device.levels is not None
    when = (
        f"at the peak of the history ({format_bytes(device.levels.peak_allocated_bytes)})" if device.levels else "now"
    )
    modules = by_module(device.holders)
    yield f"Memory {when}, by megatron-core module:"
    yield tabled(
        modules[:_MOST_MODULES],
        [
            (Column("Module"), lambda row: row[0]),
            (Column("Held now", right=True), lambda row: format_bytes(row[1])),
            *([(Column("At peak", right=True), lambda row: format_bytes(row[2]))] if at_peak else []),
        ],
    )
    yield listing(_rest(len(modules), _MOST_MODULES))
    yield GAP
    yield "The lines of code that hold most:"
    yield tabled(
        device.holders[:_MOST_SITES],
        [
            (Column("Module"), lambda holder: holder.module),
            (Column("Site"), lambda holder: holder.site),
            (Column("Blocks", right=True), lambda holder: str(max(holder.num_live, holder.num_peak or 0))),
            (Column("Held now", right=True), lambda holder: format_bytes(holder.live_bytes)),
            *(
                [(Column("At peak", right=True), lambda holder: format_bytes(holder.peak_bytes or 0))]
                if at_peak
                else []
            ),
        ],
    )
    yield listing(_rest(len(device.holders), _MOST_SITES))


def by_module(holders: Sequence[Holder]) -> list[tuple[str, int, int]]:
    """Return module, bytes now and bytes at the peak; the largest first."""
    sums: dict[str, list[int]] = {}
    for holder in holders:
        of = sums.setdefault(holder.module, [0, 0])
        of[0] += holder.live_bytes
        of[1] += holder.peak_bytes or 0
    return sorted(((name, live, peak) for name, (live, peak) in sums.items()), key=lambda row: (-max(row[1:]), row[0]))


def difference_page(names: tuple[str, str], found: SnapshotDifference) -> Page:
    """Show what the second snapshot holds more than the first."""
    when = "at the peaks of their histories, as requested" if found.at_peak else "when they were taken"
    total = found.after_bytes - found.before_bytes
    head = (
        f"A {names[0]}: {format_bytes(found.before_bytes)}",
        f"B {names[1]}: {format_bytes(found.after_bytes)}",
        f"B holds {signed(total)} than A {when}.",
    )
    if not found.modules:
        return Page((*head, GAP, "No module and no line of code differs."))
    return Page((*head, *_differing("Module", found.modules), *_differing("Site", found.sites)))


def _differing(title: str, rows: Sequence[HeldMore]) -> Iterator[Block]:
    yield GAP
    yield tabled(
        rows[:_MOST_SITES],
        [
            (
                Column(title),
                lambda row: row.module if title == "Module" else f"{row.module}: {row.site}".removesuffix(": "),
            ),
            (Column("A", right=True), lambda row: format_bytes(row.before_bytes)),
            (Column("B", right=True), lambda row: format_bytes(row.after_bytes)),
            (
                Column("B - A", right=True),
                lambda row: f"{'+' if row.more_bytes > 0 else '-'}{format_bytes(abs(row.more_bytes))}",
            ),
        ],
    )
    yield listing(_rest(len(rows), _MOST_SITES))


def signed(num_bytes: int) -> str:
    """Return ``1.00 GiB more`` or ``less``."""
    return f"{format_bytes(abs(num_bytes))} {'more' if num_bytes >= 0 else 'less'}"


def _rest(count: int, shown: int) -> list[str]:
    return [f"and {counted(count - shown, 'more row')} (--json has them)"] if count > shown else []


def show_snapshot(path: Path, *, timeline: Path | None, as_json: bool) -> None:
    """Show one file. BadRequestError if it cannot be read or drawn."""
    if timeline is not None:
        require_chart("--timeline", timeline)
    summary = snapshot_summary(path)
    device = fullest_device(summary)
    found = verdict(device)
    if as_json:
        from harness.diagnose.document import SnapshotDocument

        json.answer(SnapshotDocument.of(summary, device=device.device, verdict=found))
    else:
        show_page(snapshot_page(summary, device, found))
    if timeline is not None:
        _draw([(path.name, device)], about_snapshot(summary, device, found), timeline)


def show_difference(before: Path, after: Path, *, timeline: Path | None, as_json: bool) -> None:
    """Show the difference of two files at their fullest devices. BadRequestError if one cannot be read or drawn."""
    if timeline is not None:
        require_chart("--timeline", timeline)
    first, second = snapshot_summaries((before, after))
    summaries = first, second
    devices = fullest_device(summaries[0]), fullest_device(summaries[1])
    found = difference(*devices)
    if as_json:
        from harness.diagnose.document import SnapshotDifferenceDocument

        json.answer(SnapshotDifferenceDocument.of(before=first.file, after=second.file, difference=found))
    else:
        show_page(difference_page((str(before), str(after)), found))
    if timeline is not None:
        names = [before.name, after.name]
        if names[0] == names[1]:
            names = [f"A {before}", f"B {after}"]
        _draw(list(zip(names, devices, strict=True)), (), timeline)


def _draw(devices: Sequence[tuple[str, DeviceMemory]], about: Sequence[Block], path: Path) -> None:
    from harness.snapshot.chart import write_timeline

    print(f"wrote {write_timeline(devices, about, path)}", file=sys.stderr)  # noqa: T201
