"""Parses the out-of-memory message of torch's allocator, and finds the cause."""

import re
from dataclasses import dataclass, replace

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

_AMOUNT = r"\d{1,20}(?:\.\d{1,6})? ?(?:bytes|[KMGTPE]iB)"
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,6})?) ?(bytes|[KMGTPE]iB)")
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
EIB = 1024**3 * GIB  # more than any device: torch prints 17179869184.00 GiB for a number that it does not have
MAX_TEXT = 8000  # characters of a message; the longest known, with a list of processes, takes a tenth of it

_REJECTED = "preemptively rejected because it would exceed per_process_memory_fraction"
# How the message begins. torch 2.12 and later write the second form instead of the first, or after it.
_BEGIN = re.compile(
    rf"(?:CUDA|HIP|XPU|NPU) out of memory\. ?(?:Tried to allocate|Allocation was)|Allocation was {_REJECTED}"
)
_NEXT = re.compile(r"(?:CUDA|HIP|XPU|NPU) out of memory\.")
_PROCESS = re.compile(rf"\bProcess (\d{{1,10}}) has ({_AMOUNT}) memory in use")
_DEVICE = re.compile(r"\b[GN]PU (\d{1,4})(?: has|;)")
# Each figure: the layout since torch 2.1, or the layout of 2.0.
_FIGURES = {
    "tried_bytes": re.compile(rf"(?:Tried to allocate|Requested size:) ({_AMOUNT})"),
    "total_bytes": re.compile(rf"total capac(?:i)?ty of ({_AMOUNT})|({_AMOUNT}) total capacity"),
    "free_bytes": re.compile(rf"of which ({_AMOUNT}) is free|({_AMOUNT}) free[;)]"),
    "this_process_bytes": re.compile(rf"this process has ({_AMOUNT}) memory in use"),
    "allowed_bytes": re.compile(rf"({_AMOUNT}) allowed;"),
    "private_pool_bytes": re.compile(rf"with ({_AMOUNT}) allocated in private pools"),
    "allocated_bytes": re.compile(
        rf"Of the allocated memory ({_AMOUNT}) is allocated by PyTorch|({_AMOUNT}) already allocated"
    ),
    "unallocated_bytes": re.compile(rf"({_AMOUNT}) is reserved by PyTorch but unallocated"),
}
_RESERVED_2_0 = re.compile(rf"({_AMOUNT}) reserved in total by PyTorch")


def size_bytes(text: str | None) -> int | None:
    """Parse ``2.31 GiB`` to bytes; None without a text, and for the number that means unknown."""
    match = _SIZE.fullmatch(text) if text else None
    if match is None:
        return None
    value = round(float(match[1]) * 1024 ** _UNITS.index(match[2]))
    return value if value < EIB else None


def message_start(text: str) -> int | None:
    """Return where the first such message begins; None without a message."""
    begin = _BEGIN.search(text) if "out of memory" in text or _REJECTED in text else None
    return begin.start() if begin else None


def allocator_figures(text: str) -> AllocatorFigures | None:
    """Return the numbers of the first such message in ``text``; None without a message."""
    start = message_start(text)
    if start is None:
        return None
    # Up to the next message, so that two messages on one line are not mixed.
    following = _NEXT.search(text, start + 1)
    message = text[start : min(following.start() if following else len(text), start + MAX_TEXT)]
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
        processes=tuple(processes),
        is_beyond_counting=is_uncountable or "Tried to allocate more than 1EB" in message,
        is_rejected=_REJECTED in message,
        is_contradictory=is_contradictory,
        **found,
    )


def _first_size(pattern: re.Pattern[str], message: str) -> int | None:
    match = pattern.search(message)
    return size_bytes(next(group for group in match.groups() if group)) if match else None


def _drop_impossible(found: dict[str, int | None]) -> bool:
    """Set figures to None that exceed the device or the allocated memory; return whether there were any."""
    before, rounding = dict(found), threshold("rounding_bytes")
    allocated, spare = found["allocated_bytes"], found["unallocated_bytes"]
    if (total := found["total_bytes"]) is not None:
        if (allocated or 0) + (spare or 0) > total + rounding:
            found["allocated_bytes"] = found["unallocated_bytes"] = None
        for name in ("free_bytes", "this_process_bytes"):
            if (found[name] or 0) > total + rounding:
                found[name] = None
    if allocated is not None and (found["private_pool_bytes"] or 0) > allocated + rounding:
        found["private_pool_bytes"] = None
    return found != before


@dataclass(frozen=True, slots=True)
class Occupants:
    """Bytes on the device. ``this_process``: None if unknown; ``others`` then holds all listed processes.

    ``unlisted``: in use, but by no process on the list.
    """

    this_process_bytes: int | None
    others: tuple[ProcessMemory, ...]
    unlisted_bytes: int

    @property
    def foreign_bytes(self) -> int:
        """Bytes of other processes, as far as known. A gap below the threshold belongs to the driver."""
        listed = sum(process.used_bytes or 0 for process in self.others)
        return listed + (self.unlisted_bytes if self.unlisted_bytes >= threshold("foreign_bytes") else 0)


def occupants(figures: AllocatorFigures) -> Occupants:
    """Assign the memory in use to processes."""
    listed = tuple(process for process in figures.processes if process.used_bytes is not None)
    me = None if figures.own_bytes is not None else _this_process(figures, listed)
    this_bytes = figures.own_bytes if me is None else me.used_bytes
    found = Occupants(this_bytes, tuple(process for process in listed if process is not me), unlisted_bytes=0)
    if this_bytes is None or figures.total_bytes is None or figures.free_bytes is None:
        return found
    return replace(
        found, unlisted_bytes=max(0, figures.total_bytes - figures.free_bytes - this_bytes - found.foreign_bytes)
    )


def _this_process(figures: AllocatorFigures, listed: tuple[ProcessMemory, ...]) -> ProcessMemory | None:
    """Return the listed process that must be this one: inside a container, the driver numbers processes differently.

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


_Found = tuple[OomClass, Confidence, str]


def judged(
    figures: AllocatorFigures,
    *,
    expandable_segments: bool | None,
    device_bytes: int | None = None,
    is_in_setup: bool = False,
) -> OomVerdict:
    """Judge a message. ``expandable_segments``: whether they were on; None if unknown.

    ``device_bytes``: the memory of the job's GPUs, for messages without it. ``is_in_setup``: before training, when
    tensors alone fill a device even if libraries hold more than usual.
    """
    who = occupants(figures)
    oom_class, confidence, reason = (
        _bad_size(figures, device_bytes)
        or _limit(figures)
        or _neighbour(figures, who)
        or _room(figures)
        or _on_this_device(figures, who, has_segments=bool(expandable_segments), is_in_setup=is_in_setup)
    )
    return OomVerdict(oom_class, confidence, reason, figures.tried_bytes, figures)


def _on_this_device(figures: AllocatorFigures, who: Occupants, *, has_segments: bool, is_in_setup: bool) -> _Found:
    """Find the cause in this process. Another cause that the figures also support makes it less sure."""
    live = _live_share(figures)
    is_full = live >= threshold("full_share" if is_in_setup else "mostly_live_share")
    pieces, outside = _fragmentation(figures, has_segments=has_segments), _outside(figures, who)
    if (
        pieces is not None
        and live < threshold("mostly_live_share")
        and _spare(figures) >= threshold("fragmented_share")
    ):
        return pieces
    pools = _graph_pools(figures)
    found = pools or (None if is_full else outside) or _capacity(figures)
    is_doubted = pieces is not None or (pools is None and outside is not None and not is_in_setup)
    is_less_sure = is_doubted and live < threshold("mostly_live_share")
    return (found[0], "medium", found[2]) if is_less_sure and found[1] == "high" else found


def _live_share(figures: AllocatorFigures) -> float:
    return (figures.allocated_bytes or 0) / figures.total_bytes if figures.total_bytes else 0.0


def _spare(figures: AllocatorFigures) -> float:
    return (figures.unallocated_bytes or 0) / figures.total_bytes if figures.total_bytes else 0.0


def _bad_size(figures: AllocatorFigures, device_bytes: int | None) -> _Found | None:
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


def _limit(figures: AllocatorFigures) -> _Found | None:
    """Match a limit of the process. A limit with room for the request is not the cause."""
    if figures.is_rejected:
        reason = "torch refused the request because it would exceed the limit of this process"
        return "self_imposed_limit", "high", reason
    if figures.allowed_bytes is None:
        return None
    reserved, tried = figures.reserved_bytes, figures.tried_bytes
    reason = f"the process limits itself to {format_bytes(figures.allowed_bytes)}"
    if reserved is None or tried is None:
        return "self_imposed_limit", "medium", reason
    if reserved + tried <= figures.allowed_bytes - threshold("rounding_bytes"):
        return None
    held = f"it held {format_bytes(reserved)} and requested {format_bytes(tried)} more"
    return "self_imposed_limit", "high", f"{reason}; {held}"


def _neighbour(figures: AllocatorFigures, who: Occupants) -> _Found | None:
    tried, free, foreign = figures.tried_bytes, figures.free_bytes, who.foreign_bytes
    if tried is None or free is None:
        return None
    if who.this_process_bytes is None and foreign < threshold("foreign_bytes"):
        return _unnamed_neighbour(figures, tried, free)
    if foreign < threshold("foreign_bytes") or tried > free + foreign:
        return None
    named = ", ".join(str(process.pid) for process in who.others[:4])
    whose = f"other processes ({named})" if named else "unlisted processes"
    reason = f"{whose} hold {format_bytes(foreign)}; without them, {format_bytes(tried)} would fit"
    spare = figures.unallocated_bytes or 0
    return "other_process", "medium" if spare >= tried or not named else "high", reason


def _unnamed_neighbour(figures: AllocatorFigures, tried: int, free: int) -> _Found | None:
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


def _room(figures: AllocatorFigures) -> _Found | None:
    tried, free = figures.tried_bytes, figures.free_bytes
    if tried is None or free is None or tried > free or _live_share(figures) >= threshold("full_share"):
        return None
    reason = (
        f"{format_bytes(free)} were free after the failure, enough for {format_bytes(tried)}: another process held "
        "them before, or this process may not use all of the device (MIG, vGPU, WSL)"
    )
    return "other_process", "low", reason


def _fragmentation(figures: AllocatorFigures, *, has_segments: bool) -> _Found | None:
    """Match enough reserved memory in pieces. torch frees cached blocks first, so live neighbours pin the rest."""
    tried, total, spare = figures.tried_bytes, figures.total_bytes, figures.unallocated_bytes
    if tried is None or not total or spare is None or (figures.free_bytes or 0) + spare < tried:
        return None
    share = spare / total
    if share < threshold("slightly_fragmented_share"):
        return None
    reason = f"{format_bytes(spare)} ({share:.0%} of the device) are reserved but unallocated, but no piece fits "
    reason += format_bytes(tried)
    if pools := _pools(figures):
        reason += f"; {pools}"
    if has_segments:
        return "fragmentation", "low", f"{reason}, although expandable segments were on"
    is_much = share >= threshold("surely_fragmented_share") and spare >= tried
    return "fragmentation", "high" if is_much else "medium", reason


def _pools(figures: AllocatorFigures) -> str:
    pools, total = figures.private_pool_bytes or 0, figures.total_bytes or 0
    if not total or pools < threshold("pool_share") * total:
        return ""
    return (
        f"{format_bytes(pools)} ({pools / total:.0%} of the device) are in private pools, such as those of CUDA graphs"
    )


def _graph_pools(figures: AllocatorFigures) -> _Found | None:
    pools, total, reason = figures.private_pool_bytes or 0, figures.total_bytes or 0, _pools(figures)
    if not reason or pools < (figures.tried_bytes or 0):
        return None
    return "cuda_graph_pools", "high" if pools >= threshold("sure_pool_share") * total else "medium", reason


def _outside(figures: AllocatorFigures, who: Occupants) -> _Found | None:
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
    whose = "" if confidence == "medium" else "other processes, or "
    held = f"{format_bytes(holder - reserved)} are in use outside torch's allocator"
    return "outside_allocator", confidence, f"{held}: {whose}CUDA context, NCCL, library workspaces"


def _capacity(figures: AllocatorFigures) -> _Found:
    allocated, total, tried = figures.allocated_bytes, figures.total_bytes, figures.tried_bytes
    if allocated is None or not total:
        contradict = "the message's figures contradict each other: no device can have them"
        return "capacity", "low", contradict if figures.is_contradictory else "the message has no figures of the device"
    share = allocated / total
    reason = f"{format_bytes(allocated)} of {format_bytes(total)} ({share:.0%}) are live tensors"
    if share >= threshold("full_share"):
        return "capacity", "high", f"{reason}; the device is full"
    rest = "" if tried is None else f"; the rest has no room for a request of {format_bytes(tried)}"
    return "capacity", "medium", f"{reason}{rest}"


def _outside_threshold(total: int) -> float:
    return max(threshold("outside_bytes"), threshold("outside_share") * total)
