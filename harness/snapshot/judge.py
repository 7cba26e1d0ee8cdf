"""Diagnoses memory snapshots, alone or beside a run."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.diagnose.judge import diagnose
from harness.diagnose.values import Case, Diagnosis, Fix
from harness.errors import BadRequestError
from harness.failures.verdict import Confidence, OomVerdict, threshold
from harness.snapshot.reading import fullest_device, snapshot_summaries
from harness.snapshot.values import DeviceMemory, FailedRequest, difference, held_by
from harness.units import format_bytes


def verdict(device: DeviceMemory) -> OomVerdict | None:
    """Classify the last failed request; the first match counts. None if the history has no failed request.

    Free memory in private pools serves only their graphs, so it does not count as room. A snapshot lacks the memory of
    other processes and libraries: a device that they fill gets the class capacity, and the error's text has more.
    """
    failure = device.failure
    if failure is None:
        return None
    request, free = failure.request_bytes, failure.device_free_bytes or 0
    total = failure.reserved_then_bytes + free
    room = _unallocated(device, failure)
    pools = device.private_reserved_bytes
    if room + free >= request and room >= threshold("slightly_fragmented_share") * total:
        return _fragmentation(device, failure, room, total)
    if pools >= max(request, threshold("pool_share") * total):
        reason = f"{format_bytes(pools)} are reserved in private pools, which only their CUDA graphs can use"
        sure: Confidence = "high" if pools >= threshold("sure_pool_share") * total else "medium"
        return OomVerdict("cuda_graph_pools", sure, f"{_asked(failure)} {reason}.", request)
    share = failure.allocated_then_bytes / total if total else 0.0
    used = f"{format_bytes(failure.allocated_then_bytes)} of {format_bytes(failure.reserved_then_bytes)} reserved"
    reason = (
        f"{used} were in use: the free blocks ({format_bytes(room)}) and the rest of the device are together too small"
    )
    confidence: Confidence = "high" if share >= threshold("full_share") else "medium"
    return OomVerdict("capacity", confidence, f"{_asked(failure)} {reason}.", request)


def _fragmentation(device: DeviceMemory, failure: FailedRequest, room: int, total: int) -> OomVerdict:
    reason = f"{format_bytes(room)} were free in segments that also hold live blocks"
    if failure.is_now:
        reason += f", the largest free block {format_bytes(device.largest_free_bytes)}"
    confidence: Confidence = "medium"
    if room >= failure.request_bytes and room >= threshold("fragmented_share") * total:
        confidence = "high"
    if device.has_expandable_segments:
        confidence, reason = "low", f"{reason}; segments are expandable already, so fragmentation is rarely the cause"
    return OomVerdict("fragmentation", confidence, f"{_asked(failure)} {reason}.", failure.request_bytes)


def _unallocated(device: DeviceMemory, failure: FailedRequest) -> int:
    """Return the free bytes in the shared pool when the request failed: from the blocks of that moment, or the levels."""
    if failure.is_now:
        return device.releasable_bytes + device.stranded_bytes
    used = failure.allocated_then_bytes + (device.rounding_bytes or 0) + device.private_free_bytes
    return max(0, failure.reserved_then_bytes - used)


def _asked(failure: FailedRequest) -> str:
    left = failure.device_free_bytes
    had = "" if left is None else f" with {format_bytes(left)} left on the device"
    return f"The job asked for {format_bytes(failure.request_bytes)}{had};"


_MOST_HOLDERS = 3
# torch writes sizes with two decimals, and requests before rounding to 512 bytes.
_SAME_SHARE = 0.02
_NO_FAILURE = "the snapshot recorded no failed request, so it has no verdict"
_RECORD = "mbr-perf run ... --snapshot_on_oom"


def of_snapshots_alone(paths: Sequence[Path]) -> Diagnosis:
    """Classify the failed request in the last snapshot that has one; without one, give no verdict.

    BadRequestError for what cannot be read and for more than two.
    """
    devices = _devices(paths)
    found = verdict(devices[-1]) or next((answer for answer in map(verdict, devices) if answer), None)
    case = Case(
        name=" and ".join(str(path) for path in paths),
        origin="snapshot",
        status="oom" if found else "unknown",
        verdict=found or OomVerdict("not_oom", "low", _NO_FAILURE),
        expandable_segments=devices[-1].has_expandable_segments or None,
    )
    answer = diagnose(case)
    answer = replace(answer, evidence=(*_all_lines(paths, devices), *answer.evidence), is_conclusive=found is not None)
    if found is not None:
        return answer
    look = Fix("See which modules hold the memory.", shlex.join(["mbr-perf", "snapshot", *map(str, paths)]))
    again = Fix("For a verdict, give the job's log, or record the job again.", _RECORD)
    return replace(answer, symptoms=(), fixes=(look, again))


def added_evidence(case: Case, paths: Sequence[Path]) -> tuple[str, ...]:
    """Return evidence from snapshots besides the job's log, which decides. First, how their failed requests differ.

    BadRequestError as for :func:`of_snapshots_alone`.
    """
    devices = _devices(paths)
    differences = [_disagreement(case, path, device) for path, device in zip(paths, devices, strict=True)]
    return (*(text for text in differences if text), *_all_lines(paths, devices))


def _disagreement(case: Case, path: Path, device: DeviceMemory) -> str:
    """Name the figures in which the snapshot's failed request differs from the job's; empty if none is known to."""
    if not case.has_oom:
        return ""
    believed = "the class and the numbers above are from the job's own message"
    failure, figures = device.failure, case.verdict.figures
    if failure is None:
        return f"{path.name} holds no failed request, so it is from another moment; {believed}."
    pairs = (
        ("asked for", failure.request_bytes, case.verdict.request_bytes),
        ("reserved", failure.reserved_then_bytes, figures.reserved_bytes if figures else None),
    )
    differ = [
        f"{name} {format_bytes(here)}, not {format_bytes(there)}"
        for name, here, there in pairs
        if there is not None and abs(here - there) > _SAME_SHARE * max(here, there)
    ]
    if not differ:
        return ""
    return f"{path.name} is from another moment or rank than the job's message ({', '.join(differ)}); {believed}."


def _devices(paths: Sequence[Path]) -> list[DeviceMemory]:
    if len(paths) > 2:
        raise BadRequestError(f"{len(paths)} snapshots: mbr-perf compares at most two", remedy="name one or two")
    return [fullest_device(summary) for summary in snapshot_summaries(paths)]


def _all_lines(paths: Sequence[Path], devices: Sequence[DeviceMemory]) -> list[str]:
    """Return lines about each snapshot; for two, also what the second holds more than the first."""
    lines = [line for path, device in zip(paths, devices, strict=True) for line in _lines(path, device)]
    return [*lines, *(_more(paths, devices) if len(devices) == 2 else [])]


def _lines(path: Path, device: DeviceMemory) -> list[str]:
    sums = (
        f"{path.name}: {format_bytes(device.reserved_bytes)} reserved, {format_bytes(device.allocated_bytes)} allocated, "
        f"{format_bytes(device.stranded_bytes)} stranded, {format_bytes(device.releasable_bytes)} releasable, "
        f"{format_bytes(device.private_reserved_bytes)} in private pools; largest free block "
        f"{format_bytes(device.largest_free_bytes)}."
    )
    modules = sorted(held_by(device.holders, lambda holder: holder.module).items(), key=lambda item: -item[1])
    listed = ", ".join(f"{module} {format_bytes(size)}" for module, size in modules[:_MOST_HOLDERS] if size)
    return [sums, *([f"{path.name}: the modules that hold most: {listed}."] if listed else [])]


def _more(paths: Sequence[Path], devices: Sequence[DeviceMemory]) -> list[str]:
    found = difference(devices[0], devices[1])
    more = [row for row in found.modules if row.more_bytes > 0][:_MOST_HOLDERS]
    listed = ", ".join(f"{row.module} {format_bytes(row.more_bytes)}" for row in more)
    return [f"{paths[1].name} holds more than {paths[0].name}: {listed}."] if listed else []
