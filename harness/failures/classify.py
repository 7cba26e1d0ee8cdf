"""Classifies why a job ended: the kind of memory that ran out, or another cause."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from signal import Signals

from harness.failures.allocator import allocator_figures, judged
from harness.failures.entries import entries, known
from harness.failures.frames import error_line, in_setup
from harness.failures.verdict import OomClass, OomVerdict
from harness.records.rank import Phase
from harness.records.redact import redact
from harness.units import counted, first_line

# How CUDA refuses to lock pages of the host: cudaHostAlloc and cudaHostRegister.
_NOT_PINNED = re.compile(r"(?:CUDA|HIP) error: (?:out of memory|invalid argument|operation not supported)")
_PIN_LESS = (
    "Pin less: smaller buffers, fewer data loader workers, no pin_memory. Raise the limit of locked memory (ulimit -l "
    "unlimited, also in the container), and see free -g: some containers allow only a part of the memory."
)
_MOST_QUOTED = 160  # characters
_READ_TRACEBACK = "Read its traceback from the last line up, to the first line of the job's own code."
_READ_BEFORE = "Read the lines before it in the log of that rank: its traceback, if it has one, and earlier errors."
_READ_ITS_LOG = (
    "Read {log}: the error is above the launcher's report. If no log has it, run the job again with "
    "`torchrun --redirects 3 --log-dir DIR`."
)
_KILLED = (-9, 137)  # as Python and as a shell count SIGKILL


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known apart from the text; None if unknown.

    ``exit_code``: of the process, negative for a signal. ``scheduler_state``: Slurm's, such as OUT_OF_MEMORY.
    ``host_oom_kills``: the increase of the cgroup's oom_kill count. ``expandable_segments``: whether torch's allocator
    used them. ``device_bytes``: the memory of the job's GPUs. ``has_traceback``: the text is a Python error with its
    traceback; ``pins``: in which host memory was locked. ``phase``: of the job when it failed. ``who``: the process
    that ended, such as ``rank 3 on node07``, if a launcher reported it.
    """

    exit_code: int | None = None
    scheduler_state: str | None = None
    host_oom_kills: int | None = None
    expandable_segments: bool | None = None
    device_bytes: int | None = None
    has_traceback: bool = False
    who: str = ""
    pins: bool = False
    phase: Phase | None = None


NOTHING_KNOWN = Ending()
_IN_SETUP: frozenset[OomClass] = frozenset({"capacity", "fragmentation", "outside_allocator"})


def classify(text: str, ending: Ending = NOTHING_KNOWN) -> OomVerdict:
    """Classify a failure by its ``text``: first torch's allocator, then failures.yaml, then the ending.

    A text may be a whole traceback. The first of several messages counts.
    """
    found = _classified(text, ending)
    if ending.phase is None or ending.phase not in in_setup() or found.oom_class not in _IN_SETUP:
        return found
    doing, advice = in_setup()[ending.phase]
    reason = f"out of memory while the program {doing}: {found.reason}"
    return replace(found, reason=reason, advice=advice, is_in_setup=True)


def _classified(text: str, ending: Ending) -> OomVerdict:
    if (figures := allocator_figures(text)) is not None:
        segments, size = ending.expandable_segments, ending.device_bytes
        return judged(figures, expandable_segments=segments, device_bytes=size, is_in_setup=ending.phase in in_setup())
    if ending.pins and _NOT_PINNED.search(text):
        return OomVerdict("host_memory", "medium", "host memory could not be pinned (page-locked)", advice=_PIN_LESS)
    return known(text) or _by_ending(text, ending)


def _by_ending(text: str, ending: Ending) -> OomVerdict:
    if (ending.scheduler_state or "").startswith("OUT_OF_ME"):
        return OomVerdict("host_memory", "high", f"the scheduler reports {ending.scheduler_state}")
    if ending.host_oom_kills:
        reason = f"the kernel killed {counted(ending.host_oom_kills, 'process', 'es')} of the job's cgroup"
        return OomVerdict("host_memory", "high", reason)
    if ending.exit_code in _KILLED:
        reason = "the process was killed (SIGKILL) without a message, as the kernel does when host memory runs out"
        return OomVerdict("killed", "low", reason)
    return _by_signal(ending.exit_code) or _by_error(text, ending)


def _by_signal(exit_code: int | None) -> OomVerdict | None:
    number = 0 if exit_code is None else -exit_code if exit_code < 0 else exit_code - 128
    name = Signals(number).name.lower() if number in set(Signals) else "none"
    return next((each.verdict() for each in entries() if name in each.id), None)


def _by_error(text: str, ending: Ending) -> OomVerdict:
    """Judge an error that no entry explains, or an exit code that says nothing about the cause."""
    match = error_line(text, in_traceback=ending.has_traceback)
    if ending.has_traceback or (match and not ending.exit_code):
        error = f"not a memory failure: {_quoted(text) if match else 'the program raised an error'}"
        if ending.has_traceback:
            return OomVerdict("not_oom", "high", error, advice=_READ_TRACEBACK)
        return OomVerdict("not_oom", "medium", error, advice=_READ_BEFORE)
    if not ending.exit_code:
        sure = ending.scheduler_state is not None
        return OomVerdict("not_oom", "high" if sure else "medium", "no sign that memory ran out")
    who = ending.who or "the process that failed"
    log = f"the log of {who.partition(' on ')[0]}"
    reason = f"a launcher reports only that {who} ended with exit code {ending.exit_code}; {log} has the reason"
    return OomVerdict("unknown", "low", reason, advice=_READ_ITS_LOG.format(log=log))


def mentioned(text: str) -> OomVerdict:
    """Return the verdict on a line that has the form of no failure, in a log without any other sign."""
    reason = f"not a memory failure as far as these lines show. The first error: {_quoted(text)}"
    return OomVerdict("not_oom", "low", reason, advice=_READ_BEFORE)


def _quoted(message: str) -> str:
    """Return the first line without secrets and not too long."""
    text = redact(first_line(message))
    return text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED].rstrip()} ..."


def expandable_segments(environment: Mapping[str, str]) -> bool | None:
    """Return whether the environment enables expandable segments; None without settings of torch's allocator."""
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # torch reads both; if both are set, the first counts
    setting = next((environment[name] for name in names if name in environment), None)
    return None if setting is None else "expandable_segments:true" in setting.replace(" ", "").lower().split(",")
