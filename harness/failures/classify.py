"""Classifies why a job ended: the kind of memory that ran out, or another cause."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from signal import Signals

from harness.failures.allocator import allocator_figures, judged
from harness.failures.entries import entries, known, signal_number
from harness.failures.frames import PINS, error_line, moments
from harness.failures.verdict import OomClass, OomVerdict
from harness.records.redact import redact
from harness.units import first_line, shortened

# How CUDA refuses to lock pages of the host: cudaHostAlloc and cudaHostRegister.
_NOT_PINNED = re.compile(r"(?:CUDA|HIP) error: (?:out of memory|invalid argument|operation not supported)")
_MOST_QUOTED = 160  # characters


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known apart from the text; None: unknown. ``exit_code``: negative for a signal. ``who``: the process."""

    exit_code: int | None = None
    expandable_segments: bool | None = None
    device_bytes: int | None = None
    has_traceback: bool = False
    who: str = ""
    moment: str | None = None


NOTHING_KNOWN = Ending()
_OF_MOMENTS: frozenset[OomClass] = frozenset({"capacity", "fragmentation", "outside_allocator"})


def classify(text: str, ending: Ending = NOTHING_KNOWN) -> OomVerdict:
    """Classify a failure by the first message in its ``text``, then by its ending."""
    found, moment = _classified(text, ending), moments().get(ending.moment or "")
    if moment is not None and moment.on_host and found.oom_class in ("host_memory", "killed"):
        return replace(found, reason=f"while it {moment.doing}: {found.reason}", advice=moment.on_host)
    if moment is None or not moment.doing or found.oom_class not in _OF_MOMENTS:
        return found
    if found.oom_class != "capacity" and moment.has_activations:
        return found
    reason = f"while it {moment.doing}: {found.reason}"
    helps = moment.has_activations and not (found.advice and moment.name == "logits")
    return replace(
        found, reason=reason, advice=moment.advice, has_activations=moment.has_activations, recompute_helps=helps
    )


def _classified(text: str, ending: Ending) -> OomVerdict:
    if (figures := allocator_figures(text)) is not None:
        return judged(
            figures,
            expandable_segments=ending.expandable_segments,
            device_bytes=ending.device_bytes,
            moment=moments().get(ending.moment or ""),
        )
    if ending.moment == PINS and _NOT_PINNED.search(text):
        return OomVerdict.of_ending("not_pinned")
    return known(text) or _by_signal(ending.exit_code or 0) or _by_error(text, ending)


def _by_signal(exit_code: int) -> OomVerdict | None:
    number = signal_number(exit_code)
    if number == Signals.SIGKILL:
        return OomVerdict.of_ending("killed")
    name = Signals(number).name.lower() if number in set(Signals) else "none"
    return next((each.verdict() for each in entries() if name in each.id), None)


def _by_error(text: str, ending: Ending) -> OomVerdict:
    match = error_line(text, in_traceback=ending.has_traceback)
    if ending.has_traceback or (match and not ending.exit_code):
        error = quoted(text) if match else "the program raised an error"
        return OomVerdict.of_ending("raised" if ending.has_traceback else "reported", error=error)
    if not ending.exit_code:
        return OomVerdict.of_ending("no_sign")
    who = ending.who or "the process that failed"
    log = f"the log of {who.partition(' on ')[0]}"
    return OomVerdict.of_ending("launcher", who=who, code=ending.exit_code, log=log)


def quoted(message: str) -> str:
    """Cut a message to its first line of at most 160 characters, without secrets."""
    return shortened(redact(first_line(message)), _MOST_QUOTED)


def expandable_segments(environment: Mapping[str, str]) -> bool | None:
    """Return whether the environment enables expandable segments; None without settings of torch's allocator."""
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # torch reads both; if both are set, the first counts
    setting = next((environment[name] for name in names if name in environment), None)
    return None if setting is None else "expandable_segments:true" in setting.replace(" ", "").lower().split(",")
