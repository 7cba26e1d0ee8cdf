"""Classifies the failed request of a snapshot."""

from harness.failures.verdict import Confidence, OomVerdict, threshold
from harness.snapshot.values import DeviceMemory, FailedRequest
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
    pools = sum(pool.reserved_bytes for pool in device.private_pools)
    if room + free >= request and room >= threshold("slightly_fragmented_share") * total:
        return _fragmentation(device, failure, room, total)
    if pools >= max(request, threshold("pool_share") * total):
        reason = f"{format_bytes(pools)} are reserved in private pools, which only their CUDA graphs can use"
        sure: Confidence = "high" if pools >= threshold("sure_pool_share") * total else "medium"
        return OomVerdict("cuda_graph_pools", sure, f"{_asked(failure)} {reason}.", request)
    share = failure.allocated_then_bytes / total if total else 0.0
    used = f"{format_bytes(failure.allocated_then_bytes)} of {format_bytes(failure.reserved_then_bytes)} reserved"
    reason = (
        f"{used} are in use; the free blocks ({format_bytes(room)}) and the rest of the device are too small together"
    )
    confidence: Confidence = "high" if share >= threshold("full_share") else "medium"
    return OomVerdict("capacity", confidence, f"{_asked(failure)} {reason}.", request)


def _fragmentation(device: DeviceMemory, failure: FailedRequest, room: int, total: int) -> OomVerdict:
    reason = f"{format_bytes(room)} are free in segments with live blocks"
    if failure.is_now:
        reason += f", the largest block {format_bytes(device.largest_free_bytes)}"
    confidence: Confidence = "medium"
    if room >= failure.request_bytes and room >= threshold("fragmented_share") * total:
        confidence = "high"
    if device.has_expandable_segments:
        confidence, reason = "low", f"{reason}; segments are expandable already, so fragmentation is rarely the cause"
    return OomVerdict("fragmentation", confidence, f"{_asked(failure)} {reason}.", failure.request_bytes)


def _unallocated(device: DeviceMemory, failure: FailedRequest) -> int:
    if failure.is_now:
        return device.releasable_bytes + device.stranded_bytes
    used = failure.allocated_then_bytes + (device.rounding_bytes or 0) + device.private_free_bytes
    return max(0, failure.reserved_then_bytes - used)


def _asked(failure: FailedRequest) -> str:
    left = failure.device_free_bytes
    had = "" if left is None else f", {format_bytes(left)} left on the device"
    return f"{format_bytes(failure.request_bytes)} requested{had};"
