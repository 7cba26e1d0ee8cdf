"""A memory snapshot for people: why the request failed, where the reserved memory is, and who holds it."""

from collections.abc import Sequence

from rich.text import Text

from harness.analysis.oom.verdict import OomVerdict
from harness.analysis.snapshots.difference import SnapshotDifference
from harness.analysis.snapshots.values import DeviceMemory, Holder, SnapshotSummary
from harness.report.console import Console
from harness.report.printing import plain_table, print_lines, show
from harness.units import counted, format_bytes

_MOST_MODULES, _MOST_SITES, _MOST_POOLS = 12, 12, 3


def print_snapshot(
    console: Console, summary: SnapshotSummary, device: DeviceMemory, verdict: OomVerdict | None
) -> None:
    """The fullest device; others are named in a line."""
    print_lines(console, snapshot_lines(summary, device, verdict))
    _print_holders(console, device)


def snapshot_lines(summary: SnapshotSummary, device: DeviceMemory, verdict: OomVerdict | None) -> list[str]:
    """All but the tables."""
    others = [str(one.device) for one in summary.devices if one.device != device.device]
    also = f" (also in it: device {', '.join(others)})" if others else ""
    return [f"Snapshot  {summary.file}, device {device.device}{also}", *_failed(device, verdict), *_sums(device)]


def _failed(device: DeviceMemory, verdict: OomVerdict | None) -> list[str]:
    if verdict is None:
        told = device.history_problem or "it holds no failed request"
        if not device.levels and not device.history_problem:
            told = "it holds no history, so no failed request"
        return [f"Failure   {told}"]
    more = f" ({device.num_failures} failed; this is the last)" if device.num_failures > 1 else ""
    return [f"Failure   {verdict.line}{more}", f"          {verdict.reason}", f"Next      {verdict.next_experiment}"]


def _sums(device: DeviceMemory) -> list[str]:
    expandable = ", expandable" if device.has_expandable_segments else ""
    rows = [
        (
            "reserved",
            device.reserved_bytes,
            f"{counted(device.num_segments, 'segment')}, {counted(device.num_blocks, 'block')}{expandable}",
        ),
        ("allocated", device.allocated_bytes, _rounding(device)),
        ("pending", device.pending_bytes, "freed, another stream may still use it"),
        ("releasable", device.releasable_bytes, "empty_cache gives it back"),
        ("stranded", device.stranded_bytes, "free beside something live in its segment"),
        ("private free", device.private_free_bytes, _pools(device)),
        ("largest free", device.largest_free_bytes, "one block, private pools left out"),
    ]
    always = ("reserved", "allocated", "stranded", "largest free")
    return [
        "",
        *(f"{name:<13}{format_bytes(size):>12}  {why}" for name, size, why in rows if size or name in always),
        "",
    ]


def _rounding(device: DeviceMemory) -> str:
    if device.rounding_bytes is None:
        return "in use; the snapshot does not tell what was requested"
    return f"in use, {format_bytes(device.rounding_bytes)} of it rounding"


def _pools(device: DeviceMemory) -> str:
    pools = device.private_pools
    named = [f"{one.pool} {format_bytes(one.reserved_bytes)}" for one in pools[:_MOST_POOLS]]
    more = f" and {len(pools) - _MOST_POOLS} more" if len(pools) > _MOST_POOLS else ""
    return f"in private pools (CUDA graphs), reserved: {', '.join(named)}{more}"


def _print_holders(console: Console, device: DeviceMemory) -> None:
    at_peak = device.levels is not None
    when = (
        f"at the peak of the history ({format_bytes(device.levels.peak_allocated_bytes)})" if device.levels else "now"
    )
    columns = ("Module", "Held now", "At peak") if at_peak else ("Module", "Held now")
    table = plain_table(*columns, right=("Held now", "At peak"))
    modules = by_module(device.holders)
    for module, live, peak in modules[:_MOST_MODULES]:
        table.add_row(Text(module), format_bytes(live), *([format_bytes(peak)] if at_peak else []))
    print_lines(console, [f"Who held memory {when}, by megatron-core's modules:"])
    show(console, table)
    print_lines(console, _rest(len(modules), _MOST_MODULES))
    table = plain_table(
        "Module",
        "Site",
        "Blocks",
        "Held now",
        *(["At peak"] if at_peak else []),
        right=("Blocks", "Held now", "At peak"),
    )
    for one in device.holders[:_MOST_SITES]:
        peak_cells = [format_bytes(one.peak_bytes or 0)] if at_peak else []
        table.add_row(
            Text(one.module),  # names come from a file that is not trusted: no markup
            Text(one.site),
            str(max(one.num_live, one.num_peak or 0)),
            format_bytes(one.live_bytes),
            *peak_cells,
        )
    print_lines(console, ["", "The sites that hold most:"])
    show(console, table)
    print_lines(console, _rest(len(device.holders), _MOST_SITES))


def by_module(holders: Sequence[Holder]) -> list[tuple[str, int, int]]:
    """Module, bytes now and at the peak; the largest first."""
    sums: dict[str, list[int]] = {}
    for one in holders:
        of = sums.setdefault(one.module, [0, 0])
        of[0] += one.live_bytes
        of[1] += one.peak_bytes or 0
    return sorted(((name, live, peak) for name, (live, peak) in sums.items()), key=lambda row: (-max(row[1:]), row[0]))


def print_difference(console: Console, names: tuple[str, str], found: SnapshotDifference) -> None:
    """What the second holds more than the first."""
    when = "at the peaks of their histories, as requested" if found.at_peak else "when they were taken"
    total = found.after_bytes - found.before_bytes
    print_lines(
        console,
        [f"A {names[0]}: {format_bytes(found.before_bytes)}", f"B {names[1]}: {format_bytes(found.after_bytes)}",
         f"B holds {signed(total)} than A {when}.", ""],
    )  # fmt: skip
    if not found.modules:
        print_lines(console, ["No module and no site differs."])
        return
    for title, rows in (("Module", found.modules), ("Site", found.sites)):
        table = plain_table(title, "A", "B", "B - A", right=("A", "B", "B - A"))
        for row in rows[:_MOST_SITES]:
            name = row.module if title == "Module" else f"{row.module}: {row.site}".removesuffix(": ")
            change = ("+" if row.more_bytes > 0 else "-") + format_bytes(abs(row.more_bytes))
            table.add_row(Text(name), format_bytes(row.before_bytes), format_bytes(row.after_bytes), change)
        show(console, table)
        print_lines(console, [*_rest(len(rows), _MOST_SITES), ""])


def signed(num_bytes: int) -> str:
    """``1.00 GiB more`` or ``less``."""
    return f"{format_bytes(abs(num_bytes))} {'more' if num_bytes >= 0 else 'less'}"


def _rest(count: int, shown: int) -> list[str]:
    return [f"and {counted(count - shown, 'more row')} (--json has them)"] if count > shown else []
