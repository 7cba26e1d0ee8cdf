"""Classifies why a job ended: the kind of memory that ran out, or another cause."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from harness.failures.allocator import allocator_figures, as_full, judged
from harness.failures.frames import PINNING, SETUP, Task, error_line
from harness.failures.known_ends import end_by_signal, known_end, non_finite
from harness.failures.known_texts import known_text
from harness.failures.verdict import Confidence, OomVerdict
from harness.records.rank import Phase
from harness.records.redact import redact
from harness.units import counted, first_line

# The rest of a message that was cut short. NCCL's "CUDA error 2 'out of memory'" is about its multicast memory.
_BARE = re.compile(r"(?<!CUDA error 2 ')\bout of memory\b|\bOutOfMemoryError\b", re.IGNORECASE)
# How CUDA refuses to lock pages of the host: cudaHostAlloc and cudaHostRegister.
_NOT_PINNED = re.compile(r"(?:CUDA|HIP) error: (?:out of memory|invalid argument|operation not supported)")
_MOST_QUOTED = 160  # characters
_READ_TRACEBACK = "Read its traceback from the last line up, to the first line of the job's own code."
_READ_BEFORE = "Read the lines before it in the log of that rank: its traceback, if it has one, and earlier errors."
_READ_ITS_LOG = (
    "Read {log}: the error is above the launcher's report. If no log has it, run the job again with "
    "`torchrun --redirects 3 --log-dir DIR`, or decorate main with torch.distributed.elastic.multiprocessing.errors.record."
)
_KILLED = (-9, 137)  # as Python and as a shell count SIGKILL


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known apart from the text; None if unknown.

    ``exit_code``: of the process, negative for a signal. ``scheduler_state``: Slurm's, such as OUT_OF_MEMORY.
    ``host_oom_kills``: the increase of the cgroup's oom_kill count. ``expandable_segments``: whether torch's allocator
    used them. ``device_bytes``: the memory of the job's GPUs. ``has_traceback``: the text is a Python error with its
    traceback, which shows the ``task`` of the program. ``phase``: of the job when it failed. ``who``: the process that
    ended, such as ``rank 3 on node07``, if a launcher reported it.
    """

    exit_code: int | None = None
    scheduler_state: str | None = None
    host_oom_kills: int | None = None
    expandable_segments: bool | None = None
    device_bytes: int | None = None
    has_traceback: bool = False
    who: str = ""
    task: Task | None = None
    phase: Phase | None = None


NOTHING_KNOWN = Ending()


def classify(text: str, ending: Ending = NOTHING_KNOWN) -> OomVerdict:
    """Classify a failure by its ``text``: first torch's allocator, then libraries and host, then the ending.

    A text may be a whole traceback. The first of several messages counts.
    """
    return _in_setup(_classified(text, ending), ending.phase)


_IN_SETUP = frozenset({"capacity", "fragmentation", "outside_allocator"})


def _in_setup(found: OomVerdict, phase: Phase | None) -> OomVerdict:
    """Return the verdict with the moment, if device memory ran out before training began."""
    if phase is None or phase not in SETUP or found.oom_class not in _IN_SETUP:
        return found
    doing, advice = SETUP[phase]
    found = as_full(found)
    reason = f"out of memory while the program {doing}: {found.reason}"
    return replace(found, reason=reason, advice=advice, second=None, is_in_setup=True)


def _classified(text: str, ending: Ending) -> OomVerdict:
    figures = allocator_figures(text)
    if figures is not None:
        return judged(figures, expandable_segments=ending.expandable_segments, device_bytes=ending.device_bytes)
    if ending.task is PINNING and _NOT_PINNED.search(text):
        reason = "host memory could not be pinned (page-locked)"
        return OomVerdict("host_memory", "medium", reason, advice=PINNING.advice)
    if found := known_text(text):
        return found
    if _BARE.search(text):
        return OomVerdict("capacity", "low", "the text reports out of memory without figures")
    return non_finite(text) or known_end(text) or _by_ending(text, ending)


def _by_ending(text: str, ending: Ending) -> OomVerdict:
    if (ending.scheduler_state or "").startswith("OUT_OF_ME"):
        return OomVerdict("host_memory", "high", f"the scheduler reports {ending.scheduler_state}")
    if ending.host_oom_kills:
        reason = f"the kernel killed {counted(ending.host_oom_kills, 'process', 'es')} of the job's cgroup"
        return OomVerdict("host_memory", "high", reason)
    if ending.exit_code in _KILLED:
        reason = (
            "the process was killed (SIGKILL) without a message; the kernel often does this when host memory runs out"
        )
        return OomVerdict("killed", "low", reason)
    if by_signal := end_by_signal(ending.exit_code):
        return by_signal
    return _by_error(text, ending)


def _by_error(text: str, ending: Ending) -> OomVerdict:
    """Judge an error of Python, or an exit code that says nothing about the cause."""
    match = error_line(text, in_traceback=ending.has_traceback)
    if ending.has_traceback:
        when = f" while it {ending.task.text}" if ending.task else ""
        message = _quoted(text[match.end() :] if match else "")
        reason = f"the program raised {match[1] if match else 'an error'}{when}{message or '; memory is not the cause'}"
        advice = f"{_READ_TRACEBACK} {ending.task.advice}" if ending.task else _READ_TRACEBACK
        return OomVerdict("not_oom", "high", reason, advice=advice)
    if match and not ending.exit_code:
        reason = f"the program reported {match[1]}{_quoted(text[match.end() :])}"
        return OomVerdict("not_oom", "medium", reason, advice=_READ_BEFORE)
    if not ending.exit_code:
        sure: Confidence = "medium" if ending.scheduler_state is None else "high"
        return OomVerdict("not_oom", sure, "no sign that memory ran out")
    who = ending.who or "the process that failed"
    log = f"the log of {who.partition(' on ')[0]}"
    reason = f"a launcher reports only that {who} ended with exit code {ending.exit_code}; {log} has the reason"
    return OomVerdict("unknown", "low", reason, advice=_READ_ITS_LOG.format(log=log))


def _quoted(message: str) -> str:
    """Return ``: MESSAGE`` without secrets and not too long; empty without a message."""
    text = redact(first_line(message))
    short = text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED].rstrip()} ..."
    return f": {short}" if short else ""


def cut_traceback(task: Task | None) -> OomVerdict:
    """Return the verdict on a log that ends inside a traceback."""
    when = f" The program {task.text} then." if task else ""
    reason = "the log ends inside a traceback, before the line that names the error"
    return OomVerdict(
        "unknown", "low", reason, advice=f"Read that rank's log to its end: its last lines are missing here.{when}"
    )


# torch reads both; if both are set, the first counts.
_ALLOCATOR_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def expandable_segments(environment: Mapping[str, str]) -> bool | None:
    """Return whether the environment enables expandable segments; None without settings of torch's allocator."""
    setting = next((environment[name] for name in _ALLOCATOR_SETTINGS if name in environment), None)
    return None if setting is None else "expandable_segments:true" in setting.replace(" ", "").lower().split(",")
