"""Parses the out-of-memory message of torch's allocator, and finds the cause."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from harness.failures.frames import Moment
from harness.failures.verdict import (
    THRESHOLDS,
    AllocatorFigures,
    Confidence,
    OomClass,
    OomVerdict,
    ProcessMemory,
    impossible_bytes,
    table,
)
from harness.units import GIB, format_bytes

_AMOUNT = r"\d{1,20}(?:\.\d{1,6})? ?(?:bytes|[KMGTPE]iB)"
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,6})?) ?(bytes|[KMGTPE]iB)")
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
EIB = 1024**3 * GIB  # more than any device: torch prints 17179869184.00 GiB for a number that it does not have
MAX_TEXT = 8000  # characters of a message; the longest known, with a list of processes, takes a tenth of it

_REJECTED = "preemptively rejected because it would exceed per_process_memory_fraction"
# How the message begins. torch 2.12 and later write the second form instead of the first, or after it.
# Messages of other devices are in failures.yaml, without figures.
_BEGIN = re.compile(
    rf"(?:CUDA|HIP|NPU) out of memory\. ?(?:Tried to allocate|Allocation was)|Allocation was {_REJECTED}"
)
_NEXT = re.compile(r"(?:CUDA|HIP|NPU) out of memory\.")
_PROCESS = re.compile(rf"\bProcess (\d{{1,10}}) has ({_AMOUNT}) memory in use")
_DEVICE = re.compile(r"\b(?:GPU (?=\d+ has)|[GN]PU (?=\d+;))(\d{1,4})")
_FIGURES = {
    "tried_bytes": re.compile(rf"(?:Tried to allocate|Requested size:) ({_AMOUNT})"),
    "total_bytes": re.compile(rf"total capac(?:i)?ty of ({_AMOUNT})|({_AMOUNT}) total capacity;"),
    "free_bytes": re.compile(rf"of which ({_AMOUNT}) is free|({_AMOUNT}) free;"),
    "this_process_bytes": re.compile(rf"this process has ({_AMOUNT}) memory in use"),
    "allowed_bytes": re.compile(rf"({_AMOUNT}) allowed;"),
    "private_pool_bytes": re.compile(rf"with ({_AMOUNT}) allocated in private pools"),
    "allocated_bytes": re.compile(
        rf"Of the allocated memory ({_AMOUNT}) is allocated by PyTorch|({_AMOUNT}) already allocated;"
    ),
    "unallocated_bytes": re.compile(rf"({_AMOUNT}) is reserved by PyTorch but unallocated"),
}
_RESERVED = re.compile(rf"({_AMOUNT}) reserved in total by PyTorch")  # before torch 2.1, and on NPUs


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
    matches = {name: pattern.search(message) for name, pattern in _FIGURES.items()}
    found = {name: size_bytes(match[match.lastindex or 1]) if match else None for name, match in matches.items()}
    reserved, allocated = _RESERVED.search(message), found["allocated_bytes"]
    if reserved and allocated is not None:
        found["unallocated_bytes"] = max(0, (size_bytes(reserved[1]) or 0) - allocated)
    device, tried = _DEVICE.search(message), matches["tried_bytes"]
    processes = (ProcessMemory(int(match[1]), size_bytes(match[2])) for match in _PROCESS.finditer(message))
    # A request of an exbibyte or more is a negative size, read as one without a sign.
    is_uncountable = tried is not None and found["tried_bytes"] is None
    _drop_impossible(found)
    return AllocatorFigures(
        device=int(device[1]) if device else None,
        processes=tuple(processes),
        is_beyond_counting=is_uncountable or "Tried to allocate more than 1EB" in message,
        is_rejected=_REJECTED in message,
        **found,
    )


def _drop_impossible(found: dict[str, int | None]) -> None:
    rounding = THRESHOLDS["rounding_bytes"]
    allocated, spare = found["allocated_bytes"], found["unallocated_bytes"]
    if (total := found["total_bytes"]) is not None:
        if (allocated or 0) + (spare or 0) > total + rounding:
            found["allocated_bytes"] = found["unallocated_bytes"] = None
        for name in ("free_bytes", "this_process_bytes"):
            if (found[name] or 0) > total + rounding:
                found[name] = None
    if allocated is not None and (found["private_pool_bytes"] or 0) > allocated + rounding:
        found["private_pool_bytes"] = None


@dataclass(frozen=True, slots=True)
class Occupants:
    """Bytes on the device. ``unlisted``: of no listed process. ``others``: all of them if this process is unknown."""

    this_process_bytes: int | None
    others: tuple[ProcessMemory, ...]
    unlisted_bytes: int

    @property
    def foreign_bytes(self) -> int:
        """Bytes of other processes, as far as known. A gap below the threshold belongs to the driver."""
        listed = sum(process.used_bytes or 0 for process in self.others)
        return listed + (self.unlisted_bytes if self.unlisted_bytes >= THRESHOLDS["foreign_bytes"] else 0)


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
    """Return the listed process that must be this one: in a container the driver's numbers differ, so sizes decide."""
    reserved = figures.reserved_bytes
    if reserved is None or figures.total_bytes is None or figures.free_bytes is None:
        return None
    rounding = THRESHOLDS["rounding_bytes"]
    in_use = figures.total_bytes - figures.free_bytes
    if sum(process.used_bytes or 0 for process in listed) + reserved <= in_use + rounding:
        return None
    large_enough = [process for process in listed if (process.used_bytes or 0) >= reserved - rounding]
    return min(large_enough, key=lambda process: process.used_bytes or 0, default=None)


class _Bytes(float):
    """Bytes, shown with their unit; nan where a message has none, so that no comparison with them holds."""

    def __format__(self, spec: str) -> str:
        return format_bytes(round(self))


class _Device:
    def __init__(self, figures: AllocatorFigures, who: Occupants, device_bytes: int | None) -> None:
        def known(value: float | None) -> _Bytes:
            return _Bytes(math.nan if value is None else value)

        self.figures, self.who, self.foreign = figures, who, _Bytes(who.foreign_bytes)
        self.tried, self.free = known(figures.tried_bytes), known(figures.free_bytes)
        self.allocated, self.spare = known(figures.allocated_bytes), known(figures.unallocated_bytes)
        self.allowed = known(figures.allowed_bytes)
        self.total, self.there = known(figures.total_bytes or None), known(figures.total_bytes or device_bytes or None)
        self.pools = _Bytes(figures.private_pool_bytes or 0)
        self.reserved = _Bytes(self.allocated + self.spare)
        self.gap = _Bytes(self.total - self.free - self.reserved)
        self.live = (figures.allocated_bytes or 0) / self.total if figures.total_bytes else 0.0
        self.outside = max(THRESHOLDS["outside_bytes"], THRESHOLDS["outside_share"] * (figures.total_bytes or 0))
        self.named = ", ".join(str(process.pid) for process in who.others[:4])
        share = self.pools / self.total
        of_pools = f"{self.pools} ({share:.0%} of the device) are in private pools, such as those of CUDA graphs"
        self.pool_text = of_pools if share >= THRESHOLDS["pool_share"] else ""


_Found = tuple[OomClass, Confidence, str]
# Causes outside this process, and requests that none of its memory explains: the class, whether it applies, how sure
# that is, and the reason. The first that applies counts.
_CAUSES: tuple[tuple[OomClass, Callable[[_Device], bool], Callable[[_Device], tuple[Confidence, str]]], ...] = (
    ("bad_size", lambda d: d.figures.is_beyond_counting,
     lambda _: ("high", "the request is for more than 1 EB, which no device has")),
    ("bad_size", lambda d: math.isnan(d.there) and d.tried > impossible_bytes(),
     lambda d: ("high", f"one request is for {d.tried}, which no device has")),
    ("bad_size", lambda d: d.tried > d.there,
     lambda d: ("high" if d.tried > THRESHOLDS["impossible_share"] * d.there else "medium",
                f"one request of {d.tried} is larger than the device ({d.there})")),
    ("self_imposed_limit", lambda d: d.figures.is_rejected,
     lambda _: ("high", "torch refused the request because it would exceed the limit of this process")),
    # A limit with room for the request is not the cause.
    ("self_imposed_limit",
     lambda d: d.allowed >= 0 and not d.reserved + d.tried <= d.allowed - THRESHOLDS["rounding_bytes"],
     lambda d: ("medium" if math.isnan(d.reserved + d.tried) else "high", f"the process limits itself to {d.allowed}" +
                ("" if math.isnan(d.reserved + d.tried) else f"; it held {d.reserved} and requested {d.tried} more"))),
    ("other_process", lambda d: d.foreign >= THRESHOLDS["foreign_bytes"] and d.tried <= d.free + d.foreign,
     lambda d: ("high" if d.named and not d.spare >= d.tried else "medium",
                f"{f'other processes ({d.named})' if d.named else 'unlisted processes'} hold {d.foreign}; without "
                f"them, {d.tried} would fit")),
    # Messages without a list of processes. A gap smaller than the allocator may be of this process's libraries.
    ("other_process", lambda d: d.who.this_process_bytes is None and d.foreign < THRESHOLDS["foreign_bytes"]
     and d.gap >= d.outside and d.gap > d.reserved and d.tried <= d.free + d.gap,
     lambda d: ("medium", f"{d.gap} are in use outside torch's allocator, more than the {d.reserved} that the "
                          "allocator holds")),
    ("other_process", lambda d: d.tried <= d.free and d.live < THRESHOLDS["full_share"],
     lambda d: ("low", f"{d.free} were free after the failure, enough for {d.tried}: another process held them, or "
                       "this process may not use all of the device (MIG, vGPU, WSL)")),
)  # fmt: skip


def judged(
    figures: AllocatorFigures,
    *,
    expandable_segments: bool | None,
    device_bytes: int | None = None,
    moment: Moment | None = None,
) -> OomVerdict:
    """Judge a message. ``device_bytes``: of the job's GPUs, for messages without it. None: unknown."""
    device = _Device(figures, occupants(figures), device_bytes)
    cause = next(((oom_class, *found(device)) for oom_class, applies, found in _CAUSES if applies(device)), None)
    if cause is None and moment is not None and moment.name == "capture" and device.spare >= device.tried:
        # torch frees no cached memory and does not retry while it captures a graph.
        held = f"{device.spare} are reserved but unallocated, which a capture cannot give back"
        reason = f"while it {moment.doing}: {held}"
        return OomVerdict("cuda_graph_pools", "medium", reason, figures.tried_bytes, figures, moment.advice)
    cause = cause or _on_this_device(
        device,
        has_segments=bool(expandable_segments),
        has_activations=moment is None or moment.has_activations,
    )
    is_large = cause[0] == "capacity" and device.tried >= THRESHOLDS["large_share"] * device.total
    advice = str(table()["advice"]["one_request"]) if is_large else ""
    return OomVerdict(*cause, figures.tried_bytes, figures, advice)


def _on_this_device(device: _Device, *, has_segments: bool, has_activations: bool) -> _Found:
    """Find the cause in this process; it is less sure where the figures support another one, too."""
    is_mostly_live = device.live >= THRESHOLDS["mostly_live_share"]
    is_full = is_mostly_live if has_activations else device.live >= THRESHOLDS["full_share"]
    pieces, outside = _fragmentation(device, has_segments=has_segments), _outside(device)
    if pieces is not None and not is_mostly_live and device.spare / device.total >= THRESHOLDS["fragmented_share"]:
        return pieces
    pools = _graph_pools(device)
    found = pools or (None if is_full else outside) or _capacity(device)
    is_doubted = pieces is not None or (pools is None and outside is not None and has_activations)
    is_less_sure = is_doubted and not is_mostly_live
    return (found[0], "medium", found[2]) if is_less_sure and found[1] == "high" else found


def _fragmentation(device: _Device, *, has_segments: bool) -> _Found | None:
    """Match enough reserved memory in pieces. torch frees cached blocks first, so live neighbours pin the rest."""
    share = device.spare / device.total
    if not (device.spare >= device.tried and share >= THRESHOLDS["slightly_fragmented_share"]):
        return None
    held = f"{device.spare} ({share:.0%} of the device) are reserved but unallocated, but no piece fits {device.tried}"
    reason = "; ".join(filter(None, (held, device.pool_text)))
    if has_segments:
        return "fragmentation", "low", f"{reason}, although expandable segments were on"
    return "fragmentation", "high" if share >= THRESHOLDS["surely_fragmented_share"] else "medium", reason


def _graph_pools(device: _Device) -> _Found | None:
    if not device.pool_text or device.pools < (device.figures.tried_bytes or 0):
        return None
    is_sure = device.pools >= THRESHOLDS["sure_pool_share"] * device.total
    return "cuda_graph_pools", "high" if is_sure else "medium", device.pool_text


def _outside(device: _Device) -> _Found | None:
    own = device.who.this_process_bytes
    held = _Bytes((device.total - device.free if own is None else own) - device.reserved)
    if not (held >= device.outside and device.total > 0):
        return None
    whose, sure = ("other processes, or ", "low") if own is None else ("", "medium")
    reason = f"{held} are in use outside torch's allocator: {whose}CUDA context, NCCL, library workspaces"
    return "outside_allocator", cast(Confidence, sure), reason


def _capacity(device: _Device) -> _Found:
    if math.isnan(device.allocated / device.total):
        return "capacity", "low", "the message has no possible figures of the device in a form that mbr-perf reads"
    reason = f"{device.allocated} of {device.total} ({device.live:.0%}) are live tensors"
    if device.live >= THRESHOLDS["full_share"]:
        return "capacity", "high", f"{reason}; the device is full"
    rest = "" if math.isnan(device.tried) else f"; the rest has no room for a request of {device.tried}"
    if device.tried >= THRESHOLDS["large_share"] * device.total:
        rest = f"; one request of {device.tried} is {device.tried / device.total:.0%} of it"
    return "capacity", "medium", f"{reason}{rest}"
