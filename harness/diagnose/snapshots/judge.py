"""Diagnoses memory snapshots, alone or beside a run."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.diagnose.judge import diagnose
from harness.diagnose.snapshots.reading import fullest_device, snapshot_summaries
from harness.diagnose.snapshots.values import DeviceMemory, FailedRequest, difference, held_by
from harness.diagnose.values import Case, Diagnosis, Fix
from harness.errors import BadRequestError
from harness.judging.oom.verdict import Confidence, OomVerdict, threshold
from harness.units import format_bytes


def verdict(device: DeviceMemory) -> OomVerdict | None:
    """The class of the last failed request, first match wins; None where the history holds none.

    Free memory in private pools serves only their graphs, so it does not count as room. What other processes and
    libraries hold is not in a snapshot: a device filled by them reads as capacity here, and the error's text says more.
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
        reason = f"{format_bytes(pools)} are reserved in private pools, which nothing but their CUDA graphs can use"
        sure: Confidence = "high" if pools >= threshold("sure_pool_share") * total else "medium"
        return OomVerdict("cuda_graph_pools", sure, f"{_asked(failure)} {reason}.", request)
    share = failure.allocated_then_bytes / total if total else 0.0
    used = f"{format_bytes(failure.allocated_then_bytes)} of {format_bytes(failure.reserved_then_bytes)} reserved"
    reason = (
        f"{used} were in use: free pieces ({format_bytes(room)}) and the device's rest would not have held it together"
    )
    confidence: Confidence = "high" if share >= threshold("full_share") else "medium"
    return OomVerdict("capacity", confidence, f"{_asked(failure)} {reason}.", request)


def _fragmentation(device: DeviceMemory, failure: FailedRequest, room: int, total: int) -> OomVerdict:
    reason = f"{format_bytes(room)} were free inside segments that something live keeps"
    if failure.is_now:
        reason += f", the largest piece {format_bytes(device.largest_free_bytes)}"
    confidence: Confidence = "medium"
    if room >= failure.request_bytes and room >= threshold("fragmented_share") * total:
        confidence = "high"
    if device.has_expandable_segments:
        confidence, reason = "low", f"{reason}; segments are expandable already, so that is not the cause as a rule"
    return OomVerdict("fragmentation", confidence, f"{_asked(failure)} {reason}.", failure.request_bytes)


def _unallocated(device: DeviceMemory, failure: FailedRequest) -> int:
    """Free in the shared pool when the request failed: by its blocks where they are of that moment, else by the levels."""
    if failure.is_now:
        return device.releasable_bytes + device.stranded_bytes
    used = failure.allocated_then_bytes + (device.rounding_bytes or 0) + device.private_free_bytes
    return max(0, failure.reserved_then_bytes - used)


def _asked(failure: FailedRequest) -> str:
    left = failure.device_free_bytes
    had = "" if left is None else f" with {format_bytes(left)} left on the device"
    return f"{format_bytes(failure.request_bytes)} were asked for{had};"


_MOST_HOLDERS = 3
# torch writes sizes with two digits after the point, and a request as it was before rounding to 512 bytes.
_SAME_SHARE = 0.02
_NO_FAILURE = "no request fails in what the snapshot recorded, so it has no verdict"
_RECORD = "mbr-perf run ... --snapshot_on_oom"


def of_snapshots_alone(paths: Sequence[Path]) -> Diagnosis:
    """The class of the request that failed in the last snapshot that holds one; without such a request, no verdict.

    BadRequestError for what cannot be read and for more than two.
    """
    devices = _devices(paths)
    found = verdict(devices[-1]) or next((one for one in map(verdict, devices) if one), None)
    case = Case(
        name=" and ".join(str(path) for path in paths),
        origin="snapshot",
        status="oom" if found else "unknown",
        verdict=found or OomVerdict("not_oom", "low", _NO_FAILURE),
        expandable_segments=devices[-1].has_expandable_segments or None,
    )
    answer = diagnose(case)
    answer = replace(answer, evidence=(*_all_told(paths, devices), *answer.evidence), is_conclusive=found is not None)
    if found is not None:
        return answer
    look = Fix("See who holds the memory.", shlex.join(["mbr-perf", "snapshot", *map(str, paths)]))
    again = Fix("For a verdict, give the job's log, or record it again.", _RECORD)
    return replace(answer, symptoms=(), fixes=(look, again))


def told_beside(case: Case, paths: Sequence[Path]) -> tuple[str, ...]:
    """What snapshots add to a job's own words, which are believed; where they are of another moment, that comes first.

    BadRequestError as for :func:`of_snapshots_alone`.
    """
    devices = _devices(paths)
    told = [_disagreement(case, path, device) for path, device in zip(paths, devices, strict=True)]
    return (*(one for one in told if one), *_all_told(paths, devices))


def _disagreement(case: Case, path: Path, device: DeviceMemory) -> str:
    """In which figures the snapshot's failed request is not that of the job; empty where they agree, or none is told."""
    if not case.has_oom:
        return ""
    believed = "the class and the numbers above are those of the job's own words"
    failure, figures = device.failure, case.verdict.figures
    if failure is None:
        return f"{path.name} holds no failed request: it is of another moment; {believed}."
    pairs = (
        ("asked for", failure.request_bytes, case.verdict.request_bytes),
        ("reserved", failure.reserved_then_bytes, figures.reserved_bytes if figures else None),
    )
    differ = [
        f"{name} {format_bytes(here)} against {format_bytes(there)}"
        for name, here, there in pairs
        if there is not None and abs(here - there) > _SAME_SHARE * max(here, there)
    ]
    if not differ:
        return ""
    return f"{path.name} is of another moment or rank than the job's words ({', '.join(differ)}); {believed}."


def _devices(paths: Sequence[Path]) -> list[DeviceMemory]:
    if len(paths) > 2:
        raise BadRequestError(f"{len(paths)} snapshots: two are compared at most", remedy="name one or two")
    return [fullest_device(summary) for summary in snapshot_summaries(paths)]


def _all_told(paths: Sequence[Path], devices: Sequence[DeviceMemory]) -> list[str]:
    """Sentences on each; of two, also what the second holds more than the first."""
    told = [sentence for path, device in zip(paths, devices, strict=True) for sentence in _told(path, device)]
    return [*told, *(_more(paths, devices) if len(devices) == 2 else [])]


def _told(path: Path, device: DeviceMemory) -> list[str]:
    sums = (
        f"{path.name}: {format_bytes(device.reserved_bytes)} reserved, {format_bytes(device.allocated_bytes)} allocated, "
        f"{format_bytes(device.stranded_bytes)} stranded, {format_bytes(device.releasable_bytes)} releasable, "
        f"{format_bytes(device.private_reserved_bytes)} in private pools; largest free piece "
        f"{format_bytes(device.largest_free_bytes)}."
    )
    modules = sorted(held_by(device.holders, lambda one: one.module).items(), key=lambda item: -item[1])
    listed = ", ".join(f"{module} {format_bytes(size)}" for module, size in modules[:_MOST_HOLDERS] if size)
    return [sums, *([f"{path.name}: most is held by {listed}."] if listed else [])]


def _more(paths: Sequence[Path], devices: Sequence[DeviceMemory]) -> list[str]:
    found = difference(devices[0], devices[1])
    more = [row for row in found.modules if row.more_bytes > 0][:_MOST_HOLDERS]
    listed = ", ".join(f"{row.module} {format_bytes(row.more_bytes)}" for row in more)
    return [f"{paths[1].name} holds more than {paths[0].name}: {listed}."] if listed else []
