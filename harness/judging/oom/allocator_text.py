"""Reads the out-of-memory message of torch's allocator, with its sizes."""

import re
from dataclasses import dataclass

from harness.units import GIB, MIB

SIZE = r"\d{1,20}(?:\.\d{1,6})? ?(?:bytes|[KMGTPE]iB)"
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,6})?) ?(bytes|[KMGTPE]iB)")
_UNIT_BYTES = {"bytes": 1, "KiB": 1024, "MiB": MIB, "GiB": GIB, "TiB": 1024 * GIB, "PiB": 1024**2 * GIB,
               "EiB": 1024**3 * GIB}  # fmt: skip
EIB = 1024**3 * GIB  # more than any device: torch prints 17179869184.00 GiB for a number that it does not have


def size_bytes(text: str | None) -> int | None:
    """``2.31 GiB`` in bytes, to the precision of the text; None for none, and for the number that means unknown."""
    match = _SIZE.fullmatch(text) if text else None
    if match is None:
        return None
    value = round(float(match[1]) * _UNIT_BYTES[match[2]])
    return value if value < EIB else None


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """A process that torch listed: ``used_bytes`` on the device, None where the driver did not tell."""

    pid: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class AllocatorFigures:
    """Bytes, to the two decimals that torch prints; None where the text does not say.

    ``allocated``: live tensors and everything in private pools, their free blocks too. ``private_pool``: the part of it
    in private pools. ``unallocated``: reserved by the allocator and free, when cached blocks had been given back
    already. ``this_process``: all that this process holds on the device. ``allowed``: the limit that the process set
    itself. ``is_beyond_counting``: asked for more than 1 EB. ``is_rejected``: refused by that limit beforehand.
    """

    tried_bytes: int | None = None
    device: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    this_process_bytes: int | None = None
    processes: tuple[ProcessMemory, ...] = ()
    allowed_bytes: int | None = None
    allocated_bytes: int | None = None
    private_pool_bytes: int | None = None
    unallocated_bytes: int | None = None
    is_beyond_counting: bool = False
    is_rejected: bool = False

    @property
    def reserved_bytes(self) -> int | None:
        """All that the caching allocator holds."""
        if self.allocated_bytes is None or self.unallocated_bytes is None:
            return None
        return self.allocated_bytes + self.unallocated_bytes


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
