"""A snapshot as torch wrote it, reduced to what is said about it."""

from collections.abc import Mapping

from harness.analysis.snapshots.annotations import spans_by_device
from harness.analysis.snapshots.blocks import Blocks, Live, blocks_by_device
from harness.analysis.snapshots.fields import SnapshotFormatError, mapping, sequence
from harness.analysis.snapshots.history import History, play
from harness.analysis.snapshots.stacks import Owner, Stacks
from harness.analysis.snapshots.values import DeviceMemory, Holder, SnapshotSummary

MOST_HOLDERS = 1000  # of a device; the rest becomes one row
REST = Owner("others", "")


def summarise(snapshot: object, *, file: str, file_bytes: int) -> SnapshotSummary:
    """All devices that have memory or a history. SnapshotFormatError, with the place of what is wrong."""
    content = mapping(snapshot, "the snapshot")
    if "segments" not in content:
        raise SnapshotFormatError("it has no 'segments', which every memory snapshot of torch has")
    stacks = Stacks()
    blocks, phases = blocks_by_device(content, stacks), spans_by_device(content)
    histories = {
        device: play(
            sequence(entries, f"device_traces[{device}]"), blocks.get(device, Blocks()), phases.get(device, ()), stacks,
            f"device_traces[{device}]",
        )
        for device, entries in enumerate(sequence(content.get("device_traces") or (), "device_traces"))
        if entries
    }  # fmt: skip
    devices = sorted({*blocks, *histories})
    return SnapshotSummary(
        file=file,
        file_bytes=file_bytes,
        devices=tuple(_device(d, blocks.get(d, Blocks()), histories.get(d, History())) for d in devices),
    )


def _device(number: int, blocks: Blocks, history: History) -> DeviceMemory:
    return DeviceMemory(
        device=number,
        num_segments=blocks.num_segments,
        num_blocks=blocks.num_blocks,
        reserved_bytes=blocks.reserved,
        allocated_bytes=blocks.allocated,
        pending_bytes=blocks.pending,
        releasable_bytes=blocks.releasable,
        stranded_bytes=blocks.stranded,
        private_free_bytes=blocks.private_free,
        rounding_bytes=None if blocks.requested is None else blocks.allocated - blocks.requested,
        largest_free_bytes=blocks.largest_free,
        has_expandable_segments=blocks.has_expandable,
        private_pools=blocks.private_pools,
        holders=_holders(blocks.live, history.at_peak),
        failure=history.failure,
        num_failures=history.num_failures,
        levels=history.levels,
        history_problem=history.problem,
    )


def _holders(live: Mapping[Owner, Live], at_peak: Mapping[Owner, Live] | None) -> tuple[Holder, ...]:
    """The largest first, by what they hold now or held at the peak, whichever is more."""
    peak = at_peak or {}
    nothing = Live()

    def weight(owner: Owner) -> int:
        return max(live.get(owner, nothing).num_bytes, peak.get(owner, nothing).num_bytes)

    owners = sorted({*live, *peak}, key=lambda owner: (-weight(owner), owner))
    rows = [(owner, [live.get(owner, nothing)], [peak.get(owner, nothing)]) for owner in owners[:MOST_HOLDERS]]
    if rest := owners[MOST_HOLDERS:]:
        rows.append((REST, [live.get(o, nothing) for o in rest], [peak.get(o, nothing) for o in rest]))
    return tuple(
        Holder(
            module=owner.module,
            site=owner.site,
            live_bytes=sum(one.num_bytes for one in now),
            num_live=sum(one.count for one in now),
            peak_bytes=None if at_peak is None else sum(one.num_bytes for one in then),
            num_peak=None if at_peak is None else sum(one.count for one in then),
        )
        for owner, now, then in rows
    )
