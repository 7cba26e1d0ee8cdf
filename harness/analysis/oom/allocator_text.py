"""torch's own out-of-memory message, 2.0 to 2.15, into numbers.

Only the sizes and the words beside them are looked at. The advice at the end has changed its names and links with
nearly every release, and 2.1 and 2.2 misspell ``capacity``.
"""

import re

from harness.analysis.oom.figures import AllocatorFigures, ProcessMemory
from harness.analysis.oom.sizes import SIZE, size_bytes

# How the message begins; the second is written by torch 2.12 and later in place of the first, or after it.
_BEGIN = re.compile(
    r"(?:CUDA|HIP|XPU) out of memory\. ?(?:Tried to allocate|Allocation was)"
    r"|Allocation was preemptively rejected because it would exceed per_process_memory_fraction"
)
_MAX_TEXT = 8000  # characters of a message; the longest known, with a list of processes, takes a tenth of it
_MAX_PROCESSES = 64

_BEYOND_COUNTING = re.compile(r"Tried to allocate more than 1EB")
_REJECTED = re.compile(r"preemptively rejected because it would exceed per_process_memory_fraction")
_PROCESS = re.compile(rf"\bProcess (\d{{1,10}}) has ({SIZE}) memory in use")
_DEVICE = re.compile(r"\bGPU (\d{1,4})(?: has|;)")
# Each figure: the layout since 2.1, or that of 2.0 in parentheses.
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
    """The numbers of the first such message in ``text``; None where there is none."""
    begin = _BEGIN.search(text)
    if begin is None:
        return None
    message = _one_message(text, begin)
    found = {name: _first_size(pattern, message) for name, pattern in _FIGURES.items()}
    device = _DEVICE.search(message)
    unallocated = found["unallocated_bytes"]
    return AllocatorFigures(
        tried_bytes=found["tried_bytes"],
        device=int(device[1]) if device else None,
        total_bytes=found["total_bytes"],
        free_bytes=found["free_bytes"],
        this_process_bytes=found["this_process_bytes"],
        processes=_processes(message),
        allowed_bytes=found["allowed_bytes"],
        allocated_bytes=found["allocated_bytes"],
        private_pool_bytes=found["private_pool_bytes"],
        unallocated_bytes=_unallocated_2_0(message, found["allocated_bytes"]) if unallocated is None else unallocated,
        is_beyond_counting=bool(_BEYOND_COUNTING.search(message)) or _is_uncountable(message),
        is_rejected=bool(_REJECTED.search(message)),
    )


def _is_uncountable(message: str) -> bool:
    """Whether the request is an exbibyte or more: a negative size, read as one without a sign."""
    return _FIGURES["tried_bytes"].search(message) is not None and _first_size(_FIGURES["tried_bytes"], message) is None


def message_start(text: str) -> int | None:
    """Where the first such message begins; None where there is none."""
    begin = _BEGIN.search(text)
    return begin.start() if begin else None


def _one_message(text: str, begin: re.Match[str]) -> str:
    """From where it begins to where the next one does, so that two messages on one line are not mixed."""
    following = re.compile(r"(?:CUDA|HIP|XPU) out of memory\.").search(text, begin.end())
    end = following.start() if following else len(text)
    return text[begin.start() : min(end, begin.start() + _MAX_TEXT)]


def _first_size(pattern: re.Pattern[str], message: str) -> int | None:
    match = pattern.search(message)
    return size_bytes(next(group for group in match.groups() if group)) if match else None


def _unallocated_2_0(message: str, allocated_bytes: int | None) -> int | None:
    reserved = _first_size(_RESERVED_2_0, message)
    if reserved is None or allocated_bytes is None:
        return None
    return max(0, reserved - allocated_bytes)


def _processes(message: str) -> tuple[ProcessMemory, ...]:
    found = (ProcessMemory(int(match[1]), size_bytes(match[2])) for match in _PROCESS.finditer(message))
    return tuple(process for process, _ in zip(found, range(_MAX_PROCESSES), strict=False))
