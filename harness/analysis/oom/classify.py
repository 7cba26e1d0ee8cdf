"""One text, and what is known of the end of the process, to one class."""

import re
from dataclasses import dataclass

from harness.analysis.oom.allocator_rules import judged
from harness.analysis.oom.allocator_text import allocator_figures
from harness.analysis.oom.library_texts import known_text
from harness.analysis.oom.non_finite import non_finite
from harness.analysis.oom.other_ends import end_by_signal, known_end, python_error
from harness.analysis.oom.verdict import Confidence, OomVerdict
from harness.units import counted

# What is left of a message that was cut short.
_BARE = re.compile(r"\bout of memory\b|\bOutOfMemoryError\b", re.IGNORECASE)
_KILLED = (-9, 137)  # as Python and as a shell count SIGKILL


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known beside the text; None for what is not.

    ``exit_code``: of the process, negative for a signal. ``scheduler_state``: Slurm's, such as OUT_OF_MEMORY.
    ``host_oom_kills``: by how much the cgroup's count of oom_kill rose. ``expandable_segments``: whether torch's
    allocator used them. ``device_bytes``: the memory of the job's GPUs. ``has_traceback``: the text is an
    error of Python with its traceback.
    """

    exit_code: int | None = None
    scheduler_state: str | None = None
    host_oom_kills: int | None = None
    expandable_segments: bool | None = None
    device_bytes: int | None = None
    has_traceback: bool = False


NOTHING_KNOWN = Ending()


def classify(text: str, ending: Ending = NOTHING_KNOWN) -> OomVerdict:
    """The class of a failure whose text is ``text``: torch's allocator first, then libraries and host, then the ending.

    A text may be a whole traceback; of several messages the first counts.
    """
    figures = allocator_figures(text)
    if figures is not None:
        return judged(figures, expandable_segments=ending.expandable_segments, device_bytes=ending.device_bytes)
    return known_text(text) or _without_figures(text) or non_finite(text) or known_end(text) or _by_ending(text, ending)


def _without_figures(text: str) -> OomVerdict | None:
    if not _BARE.search(text):
        return None
    return OomVerdict("capacity", "low", "the text says out of memory and gives no figures")


def _by_ending(text: str, ending: Ending) -> OomVerdict:
    if (ending.scheduler_state or "").startswith("OUT_OF_ME"):
        return OomVerdict("host_memory", "high", f"the scheduler says {ending.scheduler_state}")
    if ending.host_oom_kills:
        return OomVerdict(
            "host_memory",
            "high",
            f"the kernel killed {counted(ending.host_oom_kills, 'process', 'es')} of the job's cgroup",
        )
    if ending.exit_code in _KILLED:
        reason = "the process was killed (SIGKILL) without a word, often by the kernel when host memory runs out"
        return OomVerdict("killed", "low", reason)
    if by_signal := end_by_signal(ending.exit_code):
        return by_signal
    if ending.has_traceback:
        return python_error(text)
    sure: Confidence = "medium" if ending.exit_code is None and ending.scheduler_state is None else "high"
    return OomVerdict("not_oom", sure, "nothing tells of memory running out")
