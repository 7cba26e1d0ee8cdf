"""Why the request that a snapshot's history ends with failed."""

from harness.analysis.oom.thresholds import threshold
from harness.analysis.oom.verdict import Confidence, OomVerdict
from harness.analysis.snapshots.values import DeviceMemory, FailedRequest
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
    reason = (
        f"{format_bytes(failure.allocated_then_bytes)} of {format_bytes(failure.reserved_then_bytes)} reserved were in "
        f"use: free pieces ({format_bytes(room)}) and the device's rest would not have held it together"
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
