"""Real memory snapshots against the records of their runs."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import checks
from case import Case, Check, case_name, judged
from ooms import oversize
from runs import Ran, Runs, case_of
from shapes import Shape

from harness.errors import BadRequestError
from harness.records.run import RunRecord
from harness.snapshot.reading import fullest_device, snapshot_summary
from harness.snapshot.values import DeviceMemory
from harness.units import format_bytes

NEEDS_GPU = f"{checks.GPU_ONLY}: torch takes snapshots of its CUDA allocator only"
ROUNDING = 0.01  # torch prints a failed request with two decimals of its unit


def read_snapshots(runs: Runs, shape: Shape) -> Iterator[Case]:
    """Read one of a step and one of a failure."""
    step, failure = (case_name(shape.name, kind) for kind in ("snapshot", "snapshot_on_oom"))
    runs_of: dict[str, dict[str, Any]] = {
        step: {"recompute": "none", "memory_snapshot": True},
        failure: {**oversize(runs.target, shape), "snapshot_on_oom": True},
    }
    for name, asked in runs_of.items():
        if runs.target.is_rehearsal:
            yield Case(name, checks=(Check("snapshot_read", "skipped", NEEDS_GPU),))
        elif name in runs.kept:
            yield runs.kept[name]
        else:
            yield case_of(name, runs.run(name, shape, **asked), partial(_checked, fails=name == failure))


def _checked(ran: Ran, *, fails: bool) -> Iterator[Check]:
    yield from checks.out_of_memory(ran) if fails else (checks.trained(ran),)
    if ran.record and not fails:
        yield checks.not_suspect(ran.record)
    device = _read(ran.folder / "ranks" / "snapshot_000.pickle")
    if isinstance(device, Check):
        yield device
    elif ran.record:
        yield from (_of_failure if fails else _of_step)(device, ran.record)


def _of_step(device: DeviceMemory, record: RunRecord) -> Iterator[Check]:
    """Check that a step recorded after the measured ones stays within their peaks and has holders."""
    memory = record.ranks[0].memory
    reserved = memory.max_reserved_bytes if memory else None
    found = f"{format_bytes(device.reserved_bytes)} reserved, the run's most {format_bytes(reserved or 0)}"
    yield judged("within_peak", holds=0 < device.reserved_bytes <= (reserved or 0), found=found)
    modules = sorted({holder.module for holder in device.holders if holder.live_bytes})
    yield judged("has_holders", holds=len(modules) > 1, found=", ".join(modules) or "no holder has a stack")


def _of_failure(device: DeviceMemory, record: RunRecord) -> Iterator[Check]:
    """Check that the last failure in the history ended the rank."""
    asked = next((rank.failure.request_bytes for rank in record.ranks if rank.failure), None)
    if device.failure is None or not asked:
        found = device.history_problem or "no failed request in the history, or none in the record"
        yield judged("same_request", holds=False, found=found)
        return
    read = device.failure.request_bytes
    found = f"history {format_bytes(read)}, record {format_bytes(asked)}; is_now {device.failure.is_now}"
    yield judged("same_request", holds=abs(read - asked) <= ROUNDING * asked, found=found)


def _read(path: Path) -> DeviceMemory | Check:
    if not path.is_file():
        return judged("snapshot_read", holds=False, found=f"{path.name} was not written")
    try:
        return fullest_device(snapshot_summary(path))
    except BadRequestError as error:
        return judged("snapshot_read", holds=False, found=str(error))
