"""The decision from the numbers of torch's message: the first rule that holds gives the class.

The order matters: a limit, an impossible request and a neighbour explain a failure whatever the remainders; fragmentation
comes before capacity, because room that exists but cannot be used looks like a full device otherwise.
"""

from harness.analysis.oom.figures import AllocatorFigures
from harness.analysis.oom.occupants import Occupants, occupants
from harness.analysis.oom.thresholds import impossible_bytes, threshold
from harness.analysis.oom.verdict import Confidence, OomClass, OomVerdict
from harness.units import format_bytes

Found = tuple[OomClass, Confidence, str]


def judged(
    figures: AllocatorFigures, *, expandable_segments: bool | None, device_bytes: int | None = None
) -> OomVerdict:
    """The verdict on one message. ``expandable_segments``: whether they were on; None where nobody knows.

    ``device_bytes``: the memory of the job's GPUs, for messages that do not name it.
    """
    who = occupants(figures)
    if found := _bad_size(figures, device_bytes):
        return _verdict(figures, found)
    for rule in (_limit, _neighbour):
        if found := rule(figures, who):
            return _verdict(figures, found)
    found = (
        _fragmentation(figures, expandable_segments=bool(expandable_segments))
        or _graph_pools(figures)
        or _outside(figures, who)
        or _capacity(figures, who)
    )
    return _verdict(figures, found)


def _verdict(figures: AllocatorFigures, found: Found) -> OomVerdict:
    oom_class, confidence, reason = found
    return OomVerdict(oom_class, confidence, reason, figures.tried_bytes, figures)


def _bad_size(figures: AllocatorFigures, device_bytes: int | None) -> Found | None:
    """One request for more than the whole device; of an unknown device, for more than twice the largest there is."""
    if figures.is_beyond_counting:
        return "bad_size", "high", "more than 1 EB was asked for, as no device has"
    there, tried = figures.total_bytes or device_bytes, figures.tried_bytes
    if tried is None or tried <= (there or impossible_bytes()):
        return None
    if not there:
        return "bad_size", "high", f"one request of {format_bytes(tried)}, as no device has"
    sure: Confidence = "high" if tried > threshold("impossible_share") * there else "medium"
    return "bad_size", sure, f"one request of {format_bytes(tried)} is larger than the device ({format_bytes(there)})"


def _limit(figures: AllocatorFigures, _: Occupants) -> Found | None:
    """A limit that leaves room for the request is not what refused it."""
    if figures.is_rejected:
        return (
            "self_imposed_limit",
            "high",
            "torch refused the request itself: it would exceed the limit of this process",
        )
    if figures.allowed_bytes is None:
        return None
    reserved, tried = figures.reserved_bytes, figures.tried_bytes
    if reserved is None or tried is None:
        return "self_imposed_limit", "medium", f"the process limits itself to {format_bytes(figures.allowed_bytes)}"
    if reserved + tried <= figures.allowed_bytes - threshold("rounding_bytes"):
        return None
    reason = f"the process limits itself to {format_bytes(figures.allowed_bytes)}; it held {format_bytes(reserved)}"
    return "self_imposed_limit", "high", f"{reason} and asked for {format_bytes(tried)} more"


def _neighbour(figures: AllocatorFigures, who: Occupants) -> Found | None:
    """Without the others the request would have fitted."""
    tried, free, foreign = figures.tried_bytes, figures.free_bytes, who.foreign_bytes
    if tried is None or free is None:
        return None
    if who.this_process_bytes is None and not who.others:
        return _unnamed_neighbour(figures, tried, free)
    if foreign < threshold("foreign_bytes") or tried > free + foreign:
        return None
    named = ", ".join(str(process.pid) for process in who.others[:4])
    whose = f"other processes ({named})" if named else "processes that the list does not have"
    reason = f"{whose} hold {format_bytes(foreign)}; without them {format_bytes(tried)} would have fitted"
    spare = figures.unallocated_bytes or 0
    return "other_process", "medium" if spare >= tried or not named else "high", reason


def _unnamed_neighbour(figures: AllocatorFigures, tried: int, free: int) -> Found | None:
    """Messages without a list of processes: what the allocator does not hold and is not free is somebody's.

    As long as it is less than the allocator holds, it may be this process's own libraries: a rule further down.
    """
    reserved, total = figures.reserved_bytes, figures.total_bytes
    if reserved is None or total is None:
        return None
    gap = total - free - reserved
    if gap < _outside_threshold(total) or gap <= reserved or tried > free + gap:
        return None
    reason = (
        f"{format_bytes(gap)} are in use that torch's allocator does not hold, more than the {format_bytes(reserved)}"
    )
    return "other_process", "medium", f"{reason} that it holds"


def _fragmentation(figures: AllocatorFigures, *, expandable_segments: bool) -> Found | None:
    """Room enough, in pieces: cached free blocks had been given back before, so what is left is pinned by neighbours."""
    tried, total, spare = figures.tried_bytes, figures.total_bytes, figures.unallocated_bytes
    if tried is None or not total or spare is None or (figures.free_bytes or 0) + spare < tried:
        return None
    share = spare / total
    if share < threshold("slightly_fragmented_share"):
        return None
    is_much = share >= threshold("fragmented_share")
    confidence: Confidence = "high" if is_much and spare >= tried else "medium"
    reason = f"{format_bytes(spare)} ({share:.0%} of the device) are reserved but unallocated, yet no piece held "
    reason += format_bytes(tried) + _beside_pools(figures, total)
    if expandable_segments:
        return "fragmentation", "low", f"{reason}, although expandable segments were on"
    return "fragmentation", confidence, reason


def _beside_pools(figures: AllocatorFigures, total: int) -> str:
    pools = figures.private_pool_bytes or 0
    if pools < threshold("pool_share") * total:
        return ""
    return f"; {format_bytes(pools)} ({pools / total:.0%}) lie in private pools, such as CUDA graphs', closed to others"


def _graph_pools(figures: AllocatorFigures) -> Found | None:
    pools, total = figures.private_pool_bytes, figures.total_bytes
    if pools is None or not total or pools < max(figures.tried_bytes or 0, threshold("pool_share") * total):
        return None
    confidence: Confidence = "high" if pools >= threshold("sure_pool_share") * total else "medium"
    reason = f"{format_bytes(pools)} ({pools / total:.0%} of the device) are in private pools, such as CUDA graphs'"
    return "cuda_graph_pools", confidence, reason


def _outside(figures: AllocatorFigures, who: Occupants) -> Found | None:
    """Memory of this process that torch's allocator does not hold: contexts, NCCL, workspaces."""
    reserved, total = figures.reserved_bytes, figures.total_bytes
    if reserved is None or total is None:
        return None
    confidence: Confidence = "medium"
    holder = who.this_process_bytes
    if holder is None and figures.free_bytes is not None:
        holder, confidence = total - figures.free_bytes, "low"
    if holder is None or holder - reserved < _outside_threshold(total):
        return None
    reason = (
        f"{format_bytes(holder - reserved)} are in use beside torch's allocator: CUDA context, NCCL, library workspaces"
    )
    return "outside_allocator", confidence, reason


def _capacity(figures: AllocatorFigures, who: Occupants) -> Found:
    allocated, total = figures.allocated_bytes, figures.total_bytes
    if allocated is None or not total:
        return "capacity", "low", "the text has no more figures than the request"
    share = allocated / total
    reason = f"{format_bytes(allocated)} of {format_bytes(total)} ({share:.0%}) are live; the device is full"
    if who.recognised_pid is not None:
        reason += f" (process {who.recognised_pid} of the list is this one, numbered otherwise outside its container)"
    return "capacity", "high" if share >= threshold("full_share") else "medium", reason


def _outside_threshold(total: int) -> float:
    return max(threshold("outside_bytes"), threshold("outside_share") * total)
