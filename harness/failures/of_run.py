"""Judges the failures in a run's record: one verdict for `run`, `sweep` and `diagnose`."""

from dataclasses import replace

from harness.failures.classify import Ending, classify, expandable_segments
from harness.failures.frames import moment_in
from harness.failures.verdict import OomVerdict
from harness.records.rank import Failure
from harness.records.run import RunRecord
from harness.units import first_line

_LONGEST = 300


def has_expandable_segments(record: RunRecord) -> bool | None:
    """Return whether the ranks' allocator used expandable segments; None if their environment is unknown."""
    # An imported job was started elsewhere: the recipe's environment may not be its own.
    environment = record.provenance.environment | ({} if record.imported else record.spec.env)
    known = expandable_segments(environment)
    return False if known is None and environment else known


def verdict_on(failure: Failure, record: RunRecord) -> OomVerdict:
    """Classify the failure of a rank. A failure of kind "oom" is out of memory even if its text is unknown."""
    is_kill = failure.kind == "signal" and ("SIGKILL" in failure.message or "-9" in failure.message)
    ending = Ending(
        exit_code=-9 if is_kill else None,
        expandable_segments=has_expandable_segments(record),
        device_bytes=record.spec.gpu_type.memory_bytes,
        has_traceback=failure.kind == "error",
        moment=moment_in(failure.traceback) or failure.phase,
    )
    found, said = classify(failure.message, ending), first_line(failure.message, "no message")[:_LONGEST]
    if failure.kind != "oom":
        plain = replace(found, confidence="high", reason=f"{failure.kind}: {said}")
        return plain if found.oom_class == "not_oom" else found
    if record.spec.measure.memory_limit_bytes is not None and found.oom_class in ("not_oom", "capacity"):
        return OomVerdict("self_imposed_limit", "high", said, failure.request_bytes, found.figures)
    if found.oom_class != "not_oom":
        return found
    return OomVerdict("capacity", "low", f"out of memory, by the rank's record: {said}", failure.request_bytes)


def oom_of_run(record: RunRecord) -> OomVerdict | None:
    """Return the verdict on `record.first_oom`; None for a run of which no rank left a message about memory."""
    rank = record.first_oom
    return verdict_on(rank.failure, record) if rank and rank.failure else None
