"""Parses the out-of-memory message of torch's allocator, and finds the cause."""

import re
from dataclasses import dataclass, replace
from itertools import islice

from harness.failures.verdict import (
    AllocatorFigures,
    Confidence,
    OomClass,
    OomVerdict,
    ProcessMemory,
    impossible_bytes,
    threshold,
)
from harness.units import GIB, format_bytes

SIZE = r"\d{1,20}(?:\.\d{1,6})? ?(?:bytes|[KMGTPE]iB)"
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,6})?) ?(bytes|[KMGTPE]iB)")
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
EIB = 1024**3 * GIB  # more than any device: torch prints 17179869184.00 GiB for a number that it does not have


def size_bytes(text: str | None) -> int | None:
    """Parse ``2.31 GiB`` to bytes; None without a text, and for the number that means unknown."""
    match = _SIZE.fullmatch(text) if text else None
    if match is None:
        return None
    value = round(float(match[1]) * 1024 ** _UNITS.index(match[2]))
    return value if value < EIB else None


_REJECTED = "preemptively rejected because it would exceed per_process_memory_fraction"
# How the message begins. torch 2.12 and later write the second form instead of the first, or after it.
_BEGIN = re.compile(
    r"(?:CUDA|HIP|XPU) out of memory\. ?(?:Tried to allocate|Allocation was)"
    rf"|Allocation was {_REJECTED}"
)
_NEXT = re.compile(r"(?:CUDA|HIP|XPU) out of memory\.")
MAX_TEXT = 8000  # characters of a message, and of a failure's text that are kept; the longest known, with a list of processes, takes a tenth of it
_MAX_PROCESSES = 64

_PROCESS = re.compile(rf"\bProcess (\d{{1,10}}) has ({SIZE}) memory in use")
_DEVICE = re.compile(r"\bGPU (\d{1,4})(?: has|;)")
# Each figure: the layout since torch 2.1, or the layout of 2.0 in parentheses.
_FIGURES = {
    "tried_bytes": re.compile(rf"(?:Tried to allocate|Requested size:) ({SIZE})"),
    "total_bytes": re.compile(rf"total capac(?:i)?ty of ({SIZE})|({SIZE}) total capacity"),
    "free_bytes": re.compile(rf"of which ({SIZE}) is free|({SIZE}) free[;)]"),
    "this_process_bytes": re.compile(rf"this process has ({SIZE}) memory in use"),
    "allowed_bytes": re.compile(rf"({SIZE}) allowed;"),
    "private_pool_bytes": re.compile(rf"with ({SIZE}) allocated in private pools"),
    "allocated_bytes": re.compile(rf"Of the allocated memory ({SIZE}) is allocated by PyTorch|({SIZE}) already allocated"),
    "unallocated_bytes": re.compile(rf"({SIZE}) is reserved by PyTorch but unallocated"),
}  # fmt: skip
_RESERVED_2_0 = re.compile(rf"({SIZE}) reserved in total by PyTorch")


def allocator_figures(text: str) -> AllocatorFigures | None:
    """Return the numbers of the first such message in ``text``; None without a message."""
    begin = _BEGIN.search(text)
    if begin is None:
        return None
    # Up to the next message, so that two messages on one line are not mixed.
    following = _NEXT.search(text, begin.end())
    end = following.start() if following else len(text)
    message = text[begin.start() : min(end, begin.start() + MAX_TEXT)]
    found = {name: _first_size(pattern, message) for name, pattern in _FIGURES.items()}
    reserved, allocated = _first_size(_RESERVED_2_0, message), found["allocated_bytes"]
    if found["unallocated_bytes"] is None and reserved is not None and allocated is not None:
        found["unallocated_bytes"] = max(0, reserved - allocated)
    device, tried = _DEVICE.search(message), _FIGURES["tried_bytes"].search(message)
    processes = (ProcessMemory(int(match[1]), size_bytes(match[2])) for match in _PROCESS.finditer(message))
    # A request of an exbibyte or more is a negative size, read as one without a sign.
    is_uncountable = tried is not None and found["tried_bytes"] is None
    is_contradictory = _drop_impossible(found)
    return AllocatorFigures(
        device=int(device[1]) if device else None,
        processes=tuple(islice(processes, _MAX_PROCESSES)),
        is_beyond_counting=is_uncountable or "Tried to allocate more than 1EB" in message,
        is_rejected=_REJECTED in message,
        is_contradictory=is_contradictory,
        **found,
    )


def _drop_impossible(found: dict[str, int | None]) -> bool:
    """Set figures to None that exceed the device, or, for private pools, the allocated memory; return whether there were any."""
    before = dict(found)
    total, rounding = found["total_bytes"], threshold("rounding_bytes")
    allocated, spare = found["allocated_bytes"], found["unallocated_bytes"]
    if total is not None:
        if (allocated or 0) + (spare or 0) > total + rounding:
            found["allocated_bytes"] = found["unallocated_bytes"] = None
        for name in ("free_bytes", "this_process_bytes"):
            if (found[name] or 0) > total + rounding:
                found[name] = None
    if allocated is not None and (found["private_pool_bytes"] or 0) > allocated + rounding:
        found["private_pool_bytes"] = None
    return found != before


def message_start(text: str) -> int | None:
    """Return where the first such message begins; None without a message."""
    begin = _BEGIN.search(text)
    return begin.start() if begin else None


def _first_size(pattern: re.Pattern[str], message: str) -> int | None:
    match = pattern.search(message)
    return size_bytes(next(group for group in match.groups() if group)) if match else None


@dataclass(frozen=True, slots=True)
class Occupants:
    """Bytes on the device. ``this_process``: None if unknown; ``others`` then holds all listed processes.

    ``unlisted``: in use, but by no process on the list. ``recognised_pid``: this process's number on the list, if only
    its size identified it: inside a container, the driver numbers processes differently.
    """

    this_process_bytes: int | None
    others: tuple[ProcessMemory, ...]
    unlisted_bytes: int
    recognised_pid: int | None = None

    @property
    def foreign_bytes(self) -> int:
        """Return the bytes of other processes, as far as known. A gap below the threshold belongs to the driver."""
        listed = sum(process.used_bytes or 0 for process in self.others)
        return listed + (self.unlisted_bytes if self.unlisted_bytes >= threshold("foreign_bytes") else 0)


def occupants(figures: AllocatorFigures) -> Occupants:
    """Assign the memory in use to processes."""
    listed = tuple(process for process in figures.processes if process.used_bytes is not None)
    me = None if figures.own_bytes is not None else _this_process(figures, listed)
    this_bytes = figures.own_bytes if me is None else me.used_bytes
    others = tuple(process for process in listed if process is not me)
    found = Occupants(this_bytes, others, unlisted_bytes=0, recognised_pid=me.pid if me else None)
    if this_bytes is None or figures.total_bytes is None or figures.free_bytes is None:
        return found
    known = this_bytes + sum(process.used_bytes or 0 for process in others)
    return replace(found, unlisted_bytes=max(0, figures.total_bytes - figures.free_bytes - known))


def _this_process(figures: AllocatorFigures, listed: tuple[ProcessMemory, ...]) -> ProcessMemory | None:
    """Return the listed process that must be this process.

    If all listed processes were others, they and this process's allocator would together fit into the memory in use. If
    they do not fit, this process is the listed process whose size is nearest above its allocator's.
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


_NO_FIGURES = "the message has no figures except the request"
_CONTRADICTORY = "the message's figures contradict each other: no device can have them"
Found = tuple[OomClass, Confidence, str]


def judged(
    figures: AllocatorFigures, *, expandable_segments: bool | None, device_bytes: int | None = None
) -> OomVerdict:
    """Judge a message. ``expandable_segments``: whether they were on; None if unknown.

    ``device_bytes``: the memory of the job's GPUs, for messages without it.
    """
    who = occupants(figures)
    first = _bad_size(figures, device_bytes) or _limit(figures)
    second: Found | None = None
    if first is None and (first := _neighbour(figures, who)) and _live_share(figures) >= threshold("full_share"):
        second = _capacity(figures, who)
    first = first or _room(figures)
    if first is None:
        pieces = _fragmentation(figures, expandable_segments=bool(expandable_segments))
        first, second = _on_this_device(figures, who, pieces)
    oom_class, confidence, reason = first
    advice = _CONTEXTS_ADVICE if oom_class == "other_process" and _are_contexts(who) else ""
    if second is None:
        return OomVerdict(oom_class, confidence, reason, figures.tried_bytes, figures, advice)
    if oom_class != "other_process" and confidence == "high" and _live_share(figures) < threshold("mostly_live_share"):
        confidence = "medium"
    both = f"{reason}; {second[2]}" if second[0] != "capacity" or first[0] == "other_process" else reason
    return OomVerdict(oom_class, confidence, both, figures.tried_bytes, figures, advice, second=second[0])


def as_full(verdict: OomVerdict) -> OomVerdict:
    """Return ``capacity`` for a device that tensors alone nearly fill, even if libraries hold more than usual."""
    figures = verdict.figures
    if verdict.oom_class != "outside_allocator" or figures is None or _live_share(figures) < threshold("full_share"):
        return verdict
    oom_class, confidence, reason = _capacity(figures, occupants(figures))
    return replace(verdict, oom_class=oom_class, confidence=confidence, reason=reason)


def _on_this_device(figures: AllocatorFigures, who: Occupants, pieces: Found | None) -> tuple[Found, Found | None]:
    """Return the cause, and the second that the figures also support. Around the thresholds both are named in either order."""
    live, spare, total = _live_share(figures), figures.unallocated_bytes or 0, figures.total_bytes or 0
    is_full = live >= threshold("mostly_live_share")
    capacity = _capacity(figures, who)
    if pieces is not None and not is_full and spare >= threshold("fragmented_share") * total:
        is_nearly_full = live >= threshold("full_share") and spare < threshold("surely_fragmented_share") * total
        return pieces, capacity if is_nearly_full else None
    outside = _outside(figures, who)
    first = _graph_pools(figures) or (None if is_full else outside) or capacity
    return first, pieces or (outside if first is capacity else None)


def _live_share(figures: AllocatorFigures) -> float:
    return (figures.allocated_bytes or 0) / figures.total_bytes if figures.total_bytes else 0.0


def _bad_size(figures: AllocatorFigures, device_bytes: int | None) -> Found | None:
    """Match a request for more than the device, or, if that is unknown, for more than twice the largest device."""
    if figures.is_beyond_counting:
        return "bad_size", "high", "the request is for more than 1 EB, which no device has"
    there, tried = figures.total_bytes or device_bytes, figures.tried_bytes
    if tried is None or tried <= (there or impossible_bytes()):
        return None
    if not there:
        return "bad_size", "high", f"one request is for {format_bytes(tried)}, which no device has"
    sure: Confidence = "high" if tried > threshold("impossible_share") * there else "medium"
    return "bad_size", sure, f"one request of {format_bytes(tried)} is larger than the device ({format_bytes(there)})"


def _limit(figures: AllocatorFigures) -> Found | None:
    """Match a limit of the process. A limit with room for the request is not the cause."""
    if figures.is_rejected:
        reason = "torch refused the request because it would exceed the limit of this process"
        return "self_imposed_limit", "high", reason
    if figures.allowed_bytes is None:
        return None
    reserved, tried = figures.reserved_bytes, figures.tried_bytes
    if reserved is None or tried is None:
        return "self_imposed_limit", "medium", f"the process limits itself to {format_bytes(figures.allowed_bytes)}"
    if reserved + tried <= figures.allowed_bytes - threshold("rounding_bytes"):
        return None
    reason = f"the process limits itself to {format_bytes(figures.allowed_bytes)}; it held {format_bytes(reserved)}"
    return "self_imposed_limit", "high", f"{reason} and requested {format_bytes(tried)} more"


def _neighbour(figures: AllocatorFigures, who: Occupants) -> Found | None:
    """Match other processes, without which the request would fit."""
    tried, free, foreign = figures.tried_bytes, figures.free_bytes, who.foreign_bytes
    if tried is None or free is None:
        return None
    if who.this_process_bytes is None and foreign < threshold("foreign_bytes"):
        return _unnamed_neighbour(figures, tried, free)
    if foreign < threshold("foreign_bytes") or tried > free + foreign:
        return None
    if _are_contexts(who):
        reason = f"{len(who.others)} other processes hold {format_bytes(foreign)} in equal parts, as bare CUDA contexts of the job's other ranks do; without them, {format_bytes(tried)} would fit"
        return "other_process", "medium", reason
    named = ", ".join(str(process.pid) for process in who.others[:4])
    whose = f"other processes ({named})" if named else "unlisted processes"
    reason = f"{whose} hold {format_bytes(foreign)}; without them, {format_bytes(tried)} would fit"
    spare = figures.unallocated_bytes or 0
    return "other_process", "medium" if spare >= tried or not named else "high", reason


def _are_contexts(who: Occupants) -> bool:
    """Return whether the others are several processes of one size, which is at most that of a CUDA context."""
    sizes = [process.used_bytes or 0 for process in who.others]
    is_small = len(sizes) > 1 and max(*sizes, who.unlisted_bytes) < threshold("foreign_bytes")
    return is_small and max(sizes) - min(sizes) <= threshold("rounding_bytes")


_CONTEXTS_ADVICE = (
    "Compare the processes with those of the job (nvidia-smi). If they are its ranks, let each select its own GPU before the first call of CUDA (torch.cuda.set_device(LOCAL_RANK)), "
    "and load files with map_location='cpu': every rank that touches this GPU leaves a context on it. Otherwise run the job without them."
)


def _unnamed_neighbour(figures: AllocatorFigures, tried: int, free: int) -> Found | None:
    """Match memory that is neither free nor the allocator's, in messages without a list of processes.

    If it is less than the allocator holds, it may belong to this process's libraries; a later rule handles that.
    """
    reserved, total = figures.reserved_bytes, figures.total_bytes
    if reserved is None or total is None:
        return None
    gap = total - free - reserved
    if gap < _outside_threshold(total) or gap <= reserved or tried > free + gap:
        return None
    held = format_bytes(reserved)
    reason = f"{format_bytes(gap)} are in use outside torch's allocator, more than the {held} that the allocator holds"
    return "other_process", "medium", reason


def _room(figures: AllocatorFigures) -> Found | None:
    """Match a request for which the device had room when torch wrote the message: neither tensors nor pieces refused it."""
    tried, free = figures.tried_bytes, figures.free_bytes
    if tried is None or free is None or tried > free or _live_share(figures) >= threshold("full_share"):
        return None
    reason = (
        f"{format_bytes(free)} were free after the failure, enough for {format_bytes(tried)}: another process held them before, "
        "or this process may not use all of the device (MIG, vGPU, WSL)"
    )
    return "other_process", "low", reason


def _fragmentation(figures: AllocatorFigures, *, expandable_segments: bool) -> Found | None:
    """Match enough reserved memory in pieces. torch frees cached blocks first, so live neighbours pin the rest."""
    tried, total, spare = figures.tried_bytes, figures.total_bytes, figures.unallocated_bytes
    if tried is None or not total or spare is None or (figures.free_bytes or 0) + spare < tried:
        return None
    share, pools = spare / total, figures.private_pool_bytes or 0
    if share < threshold("slightly_fragmented_share"):
        return None
    reason = f"{format_bytes(spare)} ({share:.0%} of the device) are reserved but unallocated, but no piece fits "
    reason += format_bytes(tried)
    if pools >= threshold("pool_share") * total:
        reason += f"; {format_bytes(pools)} ({pools / total:.0%}) are in private pools, such as those of CUDA graphs, which other allocations cannot use"
    if expandable_segments:
        return "fragmentation", "low", f"{reason}, although expandable segments were on"
    is_much = share >= threshold("surely_fragmented_share") and spare >= tried
    return "fragmentation", "high" if is_much else "medium", reason


def _graph_pools(figures: AllocatorFigures) -> Found | None:
    pools, total = figures.private_pool_bytes, figures.total_bytes
    if pools is None or not total or pools < max(figures.tried_bytes or 0, threshold("pool_share") * total):
        return None
    confidence: Confidence = "high" if pools >= threshold("sure_pool_share") * total else "medium"
    reason = (
        f"{format_bytes(pools)} ({pools / total:.0%} of the device) are in private pools, such as those of CUDA graphs"
    )
    return "cuda_graph_pools", confidence, reason


def _outside(figures: AllocatorFigures, who: Occupants) -> Found | None:
    """Match much memory of this process outside torch's allocator: contexts, NCCL, workspaces."""
    reserved, total = figures.reserved_bytes, figures.total_bytes
    if reserved is None or total is None:
        return None
    confidence: Confidence = "medium"
    holder = who.this_process_bytes
    if holder is None and figures.free_bytes is not None:
        holder, confidence = total - figures.free_bytes, "low"
    if holder is None or holder - reserved < _outside_threshold(total):
        return None
    whose = "" if who.this_process_bytes is not None else "other processes, or "
    reason = f"{format_bytes(holder - reserved)} are in use outside torch's allocator: {whose}CUDA context, NCCL, library workspaces"
    return "outside_allocator", confidence, reason


def _capacity(figures: AllocatorFigures, who: Occupants) -> Found:
    allocated, total = figures.allocated_bytes, figures.total_bytes
    if allocated is None or not total:
        return "capacity", "low", _CONTRADICTORY if figures.is_contradictory else _NO_FIGURES
    share = allocated / total
    is_full = share >= threshold("full_share")
    why = "the device is full" if is_full else _rest(figures)
    reason = f"{format_bytes(allocated)} of {format_bytes(total)} ({share:.0%}) are live tensors; {why}"
    if who.recognised_pid is not None:
        reason += (
            f" (process {who.recognised_pid} on the list is this process, numbered differently outside its container)"
        )
    return "capacity", "high" if is_full else "medium", reason


def _rest(figures: AllocatorFigures) -> str:
    """Say why a request failed on a device with much memory that holds no live tensors."""
    tried = figures.tried_bytes
    if tried is None:
        return "the message does not show what holds the rest"
    return f"the rest has no room for a request of {format_bytes(tried)}"


def _outside_threshold(total: int) -> float:
    return max(threshold("outside_bytes"), threshold("outside_share") * total)
