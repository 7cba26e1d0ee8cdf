"""Diagnoses a memory snapshot, alone or beside its job."""

import shlex
from pathlib import Path

from harness.diagnose.judge import UNKNOWN, diagnose
from harness.diagnose.values import Case, Diagnosis, Fix
from harness.failures.verdict import OomVerdict
from harness.snapshot.judge import verdict
from harness.snapshot.reading import fullest_device, snapshot_summary
from harness.snapshot.values import DeviceMemory, by_module
from harness.units import format_bytes

_MOST_HOLDERS = 3
# torch writes sizes with two decimals, and requests before rounding to 512 bytes.
_SAME_SHARE = 0.02
_NO_FAILURE = "the snapshot recorded no failed request, so it has no verdict"
_RECORD = "mbr-perf run ... --snapshot_on_oom"


def of_snapshot_alone(path: Path) -> Diagnosis:
    """Classify its failed request; without one, give no verdict. BadRequestError: the file cannot be read."""
    device = fullest_device(snapshot_summary(path))
    found = verdict(device)
    case = Case(
        name=str(path),
        origin="snapshot",
        status="oom" if found else "unknown",
        verdict=found or OomVerdict("not_oom", "low", _NO_FAILURE),
        expandable_segments=device.has_expandable_segments or None,
    )
    answer = diagnose(case)
    evidence = (*_lines(path, device), *answer.evidence)
    if found is not None:
        return answer.model_copy(update={"evidence": evidence})
    look = Fix("See which modules hold the memory.", shlex.join(["mbr-perf", "snapshot", str(path)]))
    again = Fix("For a verdict, give the job's log, or record the job again.", _RECORD)
    unknown = answer.verdict.model_copy(update=UNKNOWN)
    return answer.model_copy(update={"verdict": unknown, "evidence": evidence, "symptoms": (), "fixes": (look, again)})


def added_evidence(case: Case, path: Path) -> tuple[str, ...]:
    """Return evidence besides the job's log, which decides. First, how the two failed requests differ.

    BadRequestError as for :func:`of_snapshot_alone`.
    """
    device = fullest_device(snapshot_summary(path))
    return (*filter(None, [_disagreement(case, path, device)]), *_lines(path, device))


def _disagreement(case: Case, path: Path, device: DeviceMemory) -> str:
    """Name the figures in which the snapshot's failed request differs from the job's; empty if none is known to."""
    if not case.has_oom:
        return ""
    believed = "the class and the numbers above are from the job's own message"
    failure, figures = device.failure, case.verdict.figures
    if failure is None:
        return f"{path.name} holds no failed request, so it is from another moment; {believed}."
    pairs = (
        ("asked for", failure.request_bytes, case.verdict.request_bytes),
        ("reserved", failure.reserved_then_bytes, figures.reserved_bytes if figures else None),
    )
    differ = [
        f"{name} {format_bytes(here)}, not {format_bytes(there)}"
        for name, here, there in pairs
        if there is not None and abs(here - there) > _SAME_SHARE * max(here, there)
    ]
    if not differ:
        return ""
    return f"{path.name} is from another moment or rank than the job's message ({', '.join(differ)}); {believed}."


def _lines(path: Path, device: DeviceMemory) -> list[str]:
    rows = (
        ("reserved", device.reserved_bytes),
        ("allocated", device.allocated_bytes),
        ("stranded", device.stranded_bytes),
        ("releasable", device.releasable_bytes),
        ("in private pools", device.private_reserved_bytes),
    )
    listed = ", ".join(f"{format_bytes(size)} {what}" for what, size in rows)
    sums = f"{path.name}: {listed}; largest free block {format_bytes(device.largest_free_bytes)}."
    modules = by_module(device.holders)[:_MOST_HOLDERS]
    listed = ", ".join(f"{module} {format_bytes(size)}" for module, size in modules if size)
    return [sums, *([f"{path.name}: the modules that hold most: {listed}."] if listed else [])]
