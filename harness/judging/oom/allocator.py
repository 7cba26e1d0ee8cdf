"""Rules over what torch's allocator reports: capacity, fragmentation, other processes."""

from dataclasses import dataclass, replace

from harness.judging.oom.allocator_text import AllocatorFigures, ProcessMemory
from harness.judging.oom.verdict import Confidence, OomClass, OomVerdict, impossible_bytes, threshold
from harness.units import format_bytes


@dataclass(frozen=True, slots=True)
class Occupants:
    """Bytes on the device. ``this_process`` is None where nothing tells; ``others`` then holds what is listed.

    ``unlisted``: in use, by nobody on the list. ``recognised_pid``: the number under which the list has this process,
    where it is known by its size only: inside a container the driver counts processes otherwise.
    """

    this_process_bytes: int | None
    others: tuple[ProcessMemory, ...]
    unlisted_bytes: int
    recognised_pid: int | None = None

    @property
    def foreign_bytes(self) -> int:
        """What is not this process's, as far as the text tells; a gap below the threshold is the driver's own."""
        listed = sum(process.used_bytes or 0 for process in self.others)
        return listed + (self.unlisted_bytes if self.unlisted_bytes >= threshold("foreign_bytes") else 0)


def occupants(figures: AllocatorFigures) -> Occupants:
    """Share the memory in use out among processes."""
    listed = tuple(process for process in figures.processes if process.used_bytes is not None)
    me = None if figures.this_process_bytes is not None else _this_process(figures, listed)
    this_bytes = figures.this_process_bytes if me is None else me.used_bytes
    others = tuple(process for process in listed if process is not me)
    found = Occupants(this_bytes, others, unlisted_bytes=0, recognised_pid=me.pid if me else None)
    if this_bytes is None or figures.total_bytes is None or figures.free_bytes is None:
        return found
    told = this_bytes + sum(process.used_bytes or 0 for process in others)
    return replace(found, unlisted_bytes=max(0, figures.total_bytes - figures.free_bytes - told))


def _this_process(figures: AllocatorFigures, listed: tuple[ProcessMemory, ...]) -> ProcessMemory | None:
    """The listed process that must be this one.

    If all listed were others, they and what this process's allocator holds would have to fit into what is in use. Where
    they do not, this process is the one whose size is nearest above its allocator's.
    """
    reserved = figures.reserved_bytes
    if reserved is None or figures.total_bytes is None or figures.free_bytes is None:
        return None
    rounding = threshold("rounding_bytes")
    in_use = figures.total_bytes - figures.free_bytes
    if sum(process.used_bytes or 0 for process in listed) + reserved <= in_use + rounding:
        return None
    large_enough = [process for process in listed if (process.used_bytes or 0) >= reserved - rounding]
    return min(large_enough, key=lambda process: process.used_bytes or 0, default=None)


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
