"""Finds where lines were broken: the columns of a terminal, the beginnings of lines, and blanks that were lost at a seam."""

import re
from collections.abc import Iterable, Iterator

# How a line begins that continues no other.
START = re.compile(
    r"\s*(?:\[?\d{4}-\d\d-\d\d[ T]\d|\[(?:rank|default)\d{1,6}\]:|\[Rank \d{1,6}\] \(|\[NeMo |Traceback \(|File \"|Step Time :"
    r"|\[[EWIF]\d{0,4} ?[\d:. ]{0,30}\w{1,60}\.(?:cpp|py):\d|iteration +\d{1,12}/|srun: error|slurmstepd: |(?:DEBUG|INFO|WARNING|ERROR)[: ]"
    r"|[\w.-]{1,100}:\d+:\d+ \[\d+\] |[A-Za-z_][\w.]{2,150}Error: |[=*-]{8}|\[\d{1,4}\]:|\(min, max\)|[\w-]{1,60} \.{3,80}[: ]|\d{1,3}%\|)"
)

# The words of the messages that mbr-perf reads figures from, as torch, NCCL, Slurm and Megatron write them.
_TEXT = """
CUDA HIP out of memory Tried to allocate more than GPU has total capacity capacty which is free Including non PyTorch this process
memory in use Of the allocated is allocated by with allocated in private pools Graphs and reserved but unallocated If large try
setting PYTORCH CUDA ALLOC CONF expandable segments True False avoid fragmentation See documentation for Memory Management already
allowed Process bytes GiB MiB KiB Allocation was preemptively rejected because it would exceed per fraction limit Requested size
Watchdog caught collective operation timeout ran milliseconds before timing failure detected at work sequence id status last enqueued
completed Rank rank NCCL error Error invalid usage run details version unhandled system Duplicate detected both on device Call failed
Connection timed dev curr state next local remote GID index Last Exception either an or iteration consumed samples elapsed time
per ms learning rate global batch loss lm scale grad norm number skipped iterations nan throughput after mem gigabytes max reserved allocated
Step Time utilization host local exitcode pid traceback most recent call srun task Killed Exited exit code slurmstepd Got completion from peer JOB ON AT CANCELLED
DUE TO TIME LIMIT NODE FAILURE Unexpected result message found NaN Inf forward calculation bucket backward pass data parallel
default communication invocation node Segmentation fault line File workers are dataloader shared possible It that killed signal under
DefaultCPUAllocator can not enough you Cannot allocate memory code
OutOfMemoryError RuntimeError ValueError KeyError AssertionError DistBackendError ChildFailedError torch OutOfMemory MemoryLimitError
"""
_WORDS = frozenset(_TEXT.split())
_LEFT, _RIGHT = re.compile(r"[A-Za-z]+$"), re.compile(r"[A-Za-z]+")
_ERROR = re.compile(r"[a-z](?:Error|Exception)$")
_TAIL = 80  # characters before a seam that decide; searching all of a long text for its last word takes long
_GROUP = re.compile(r" GUID \d{1,9}$")
_ADDRESS = re.compile(r" GID [0-9A-Fa-f:.]{0,45}$")
_MODULES = frozenset({"torch", "cuda", "distributed", "megatron", "core", "elastic", "training", "transformer"})


def squeezed(text: str) -> str:
    """Return the text without blanks, in which a broken text equals the whole one."""
    return "".join(text.split())


def glue(text: str, piece: str, *, exact: bool) -> str:
    """Join two pieces. ``exact``: the stream keeps blanks at the ends of its lines, so that none is missing."""
    if not text or not piece or text[-1].isspace() or piece[0].isspace():
        return text + piece
    return f"{text} {piece}" if _lost_a_blank(text, piece, exact=exact) else text + piece


def joins(begun: str, more: str) -> tuple[str, str]:
    """Return both lines that two pieces may have been: without a blank at the seam, and with one."""
    return begun + more, f"{begun} {more}"


def _lost_a_blank(text: str, piece: str, *, exact: bool) -> bool:
    last, first = text[-1], piece[0]
    text = text[-_TAIL:]
    left, right = _word(_LEFT.search(text)), _word(_RIGHT.match(piece))
    if last.isalpha() and first.isalpha():
        return _are_two_words(left, right, exact=exact)
    both_digits = last.isdigit() and first.isdigit()
    if exact or both_digits or first in ".,;:)]|'\"" or last in "([=_/-'\"" or first in "_=/":
        return False
    if last == ".":
        return not (first.isdigit() and text[-2:-1].isdigit()) and _word(_LEFT.search(text[:-1])) not in _MODULES
    if last == ":" and first.isdigit():
        return not (text[-2:-1].isdigit() or _ADDRESS.search(text))  # a time, or an address
    if last.isdigit() and first.isalpha():
        return right in _WORDS
    is_bracket = first == "(" and _GROUP.search(text) is None
    return is_bracket or last in ",;:|)]" or (first.isdigit() and left in _WORDS)


def _are_two_words(left: str, right: str, *, exact: bool) -> bool:
    if (
        left + right in _WORDS
        or right in ("Error", "Exception")
        or re.search(r"[a-z](?:Error|Exception)$", left + right)
    ):
        return False
    return (left in _WORDS and right in _WORDS) or (not exact and (left in _WORDS or right in _WORDS))


def _word(match: re.Match[str] | None) -> str:
    return match[0] if match else ""


_NARROWEST = 20
_LEAST_FULL = 3
_NEARLY = 10
_PADDING = 12  # blanks; Megatron aligns numbers with up to nine


def wrapped_at(lines: list[str]) -> int:
    """Return the columns at which a terminal broke every longer line; 0 if it did not.

    Then no line is longer, several are exactly so long, and what follows them begins no line of its own.
    """
    width = max(map(len, lines), default=0)
    full = [place for place, line in enumerate(lines[:-1]) if _fills(line, width) and len(set(line)) > 2]
    broken = [place for place in full if lines[place + 1].strip() and not starts_a_line(lines[place + 1], lines[place])]
    ended = [place for place in full if lines[place].rstrip()[-1:] in "|.)"]
    nearly = sum(width - _NEARLY <= len(line) < width for line in lines)  # as where a mail program breaks between words
    is_wrapped = (
        len(full) > nearly and width >= _NARROWEST and len(full) >= _LEAST_FULL and 10 * len(broken) >= 9 * len(full)
    )
    return width if is_wrapped and 2 * len(ended) < len(full) else 0


def _fills(line: str, width: int) -> bool:
    """Return whether the line is as wide as the terminal, which does not only pad it with blanks."""
    return len(line) == width and not line.endswith(" " * _PADDING)


_TIME_AT_END = re.compile(r"\[\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[\d.,]{0,10}\]\s*$")


def starts_a_line(text: str, before: str = "") -> bool:
    """Return whether the text begins a line, also with srun's label. ``before``: the line before, whose time it may follow."""
    if text.lstrip().startswith("iteration ") and _TIME_AT_END.search(before):
        return False
    return START.match(text) is not None or re.match(r"\s*\d{1,6}: ", text) is not None


_LONGEST = 1 << 16  # characters


def unwrapped(lines: Iterable[tuple[int, str]], width: int, *, exact: bool) -> Iterator[tuple[int, str]]:
    """Join the lines that a terminal broke at ``width`` columns; 0: it broke none."""
    if not width:
        yield from lines
        return
    begun: tuple[int, str] | None = None
    last = ""
    for number, text in lines:
        if begun is not None and _fills(last, width) and not starts_a_line(text, begun[1]) and len(begun[1]) < _LONGEST:
            begun = begun[0], glue(begun[1], text, exact=exact)
        else:
            if begun is not None:
                yield begun
            begun = number, text
        last = text
    if begun is not None:
        yield begun
