"""Memory snapshots among the inputs of a diagnosis: a class where a request failed, and what holds the memory."""

from collections.abc import Sequence
from pathlib import Path

from harness.analysis.diagnosis.values import Case
from harness.analysis.oom.verdict import OomVerdict
from harness.analysis.snapshots.difference import difference
from harness.analysis.snapshots.values import DeviceMemory
from harness.analysis.snapshots.verdict import verdict
from harness.errors import BadRequestError
from harness.runner.snapshots.reading import fullest_device, snapshot_summary
from harness.units import format_bytes

_MOST_HOLDERS = 3


def case_of_snapshots(paths: Sequence[Path]) -> tuple[Case, tuple[str, ...]]:
    """The last snapshot as a case, and sentences on all of them; of two, what the second holds more than the first.

    BadRequestError for what cannot be read and for more than two.
    """
    if len(paths) > 2:
        raise BadRequestError(f"{len(paths)} snapshots: two are compared at most", remedy="name one or two")
    devices = [fullest_device(snapshot_summary(path)) for path in paths]
    found = verdict(devices[-1]) or next((one for one in map(verdict, devices) if one), None)
    told = [sentence for path, device in zip(paths, devices, strict=True) for sentence in _told(path, device)]
    if len(devices) == 2:
        told += _more(paths, devices)
    case = Case(
        name=" and ".join(str(path) for path in paths),
        origin="snapshot",
        status="oom" if found else "unknown",
        verdict=found or OomVerdict("not_oom", "low", "no snapshot holds a request that failed"),
        expandable_segments=devices[-1].has_expandable_segments or None,
    )
    return case, tuple(told)


def _told(path: Path, device: DeviceMemory) -> list[str]:
    sums = (
        f"{path.name}: {format_bytes(device.reserved_bytes)} reserved, {format_bytes(device.allocated_bytes)} allocated, "
        f"{format_bytes(device.stranded_bytes)} stranded, {format_bytes(device.releasable_bytes)} releasable, "
        f"{format_bytes(device.private_reserved_bytes)} in private pools; largest free piece "
        f"{format_bytes(device.largest_free_bytes)}."
    )
    listed = ", ".join(f"{module} {format_bytes(size)}" for module, size in _modules(device)[:_MOST_HOLDERS] if size)
    return [sums, *([f"{path.name}: most is held by {listed}."] if listed else [])]


def _modules(device: DeviceMemory) -> list[tuple[str, int]]:
    """Bytes that live now, by module; the largest first."""
    sums: dict[str, int] = {}
    for holder in device.holders:
        sums[holder.module] = sums.get(holder.module, 0) + holder.live_bytes
    return sorted(sums.items(), key=lambda item: -item[1])


def _more(paths: Sequence[Path], devices: Sequence[DeviceMemory]) -> list[str]:
    found = difference(devices[0], devices[1])
    more = [row for row in found.modules if row.more_bytes > 0][:_MOST_HOLDERS]
    listed = ", ".join(f"{row.module} {format_bytes(row.more_bytes)}" for row in more)
    return [f"{paths[1].name} holds more than {paths[0].name}: {listed}."] if listed else []
