"""Classifies why a job ended: which kind of memory ran out, or another end."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from harness.judging.oom.allocator import allocator_figures, judged
from harness.judging.oom.known_texts import end_by_signal, known_end, known_text, non_finite
from harness.judging.oom.verdict import Confidence, OomVerdict
from harness.records.run import RunRecord
from harness.units import counted

# What is left of a message that was cut short.
_BARE = re.compile(r"\bout of memory\b|\bOutOfMemoryError\b", re.IGNORECASE)
_PYTHON = re.compile(r"(?:[A-Za-z_]\w{0,99}\.){0,9}([A-Za-z_]\w{0,99})(?::|$)")
_READ_TRACEBACK = "Read its traceback from the last line up: the first line of the job's own code in it."
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
    if found := known_text(text):
        return found
    if _BARE.search(text):
        return OomVerdict("capacity", "low", "the text says out of memory and gives no figures")
    return non_finite(text) or known_end(text) or _by_ending(text, ending)


def _by_ending(text: str, ending: Ending) -> OomVerdict:
    if (ending.scheduler_state or "").startswith("OUT_OF_ME"):
        return OomVerdict("host_memory", "high", f"the scheduler says {ending.scheduler_state}")
    if ending.host_oom_kills:
        told = f"the kernel killed {counted(ending.host_oom_kills, 'process', 'es')} of the job's cgroup"
        return OomVerdict("host_memory", "high", told)
    if ending.exit_code in _KILLED:
        reason = "the process was killed (SIGKILL) without a word, often by the kernel when host memory runs out"
        return OomVerdict("killed", "low", reason)
    if by_signal := end_by_signal(ending.exit_code):
        return by_signal
    if ending.has_traceback:
        match = _PYTHON.match(text)
        told = f"the program raised {match[1] if match else 'an error'}; memory is not what ended it"
        return OomVerdict("not_oom", "high", told, advice=_READ_TRACEBACK)
    sure: Confidence = "medium" if ending.exit_code is None and ending.scheduler_state is None else "high"
    return OomVerdict("not_oom", sure, "nothing tells of memory running out")


# torch reads both; where both are set the first counts.
_ALLOCATOR_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@dataclass(frozen=True, slots=True)
class RankOom:
    """The verdict on one rank's words; the lowest rank that ran out of memory, as in the failure of the record."""

    rank: int
    verdict: OomVerdict


def oom_of_run(record: RunRecord) -> RankOom | None:
    """None for a run that ended otherwise, and where no rank left a word."""
    ending = Ending(expandable_segments=expandable_segments(record.provenance.environment))
    for rank in sorted(record.ranks, key=lambda rank: rank.rank):
        if rank.failure is not None and rank.failure.kind == "oom":
            return RankOom(rank.rank, classify(rank.failure.message, ending))
    return None


def expandable_segments(environment: Mapping[str, str]) -> bool | None:
    """Whether torch's allocator is told to use them; None where ``environment`` does not hold its settings."""
    told = next((environment[name] for name in _ALLOCATOR_SETTINGS if name in environment), None)
    return None if told is None else "expandable_segments:true" in told.replace(" ", "").lower().split(",")
