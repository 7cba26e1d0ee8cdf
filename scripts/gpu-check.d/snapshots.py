"""Real memory snapshots: the reader's sums against torch's own counters, and against those of runs."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import checks
from case import Case, Check, Unfinished, case_name, case_of_run, judged
from ooms import allocator_settings, not_made, oversize
from runs import Runs
from shapes import Shape

from harness.errors import BadRequestError
from harness.records.run import RunRecord
from harness.snapshot.reading import fullest_device, snapshot_summary
from harness.snapshot.values import DeviceMemory
from harness.units import format_bytes

NEEDS_GPU = f"{checks.GPU_ONLY}: torch takes snapshots of its CUDA allocator only"
ROUNDING = 0.01  # torch prints a failed request with two decimals of its unit


def read_snapshots(runs: Runs, shape: Shape) -> Iterator[Case]:
    """Read one of all states of the allocator, with and without expandable segments, one of a step, one of a failure."""
    states = {case_name("snapshot", "states"): False, case_name("snapshot", "states", "expandable"): True}
    step, failure = (case_name(shape.name, kind) for kind in ("snapshot", "snapshot_on_oom"))
    runs_of: dict[str, dict[str, Any]] = {
        step: {"recompute": "none", "memory_snapshot": True},
        failure: {**oversize(runs.target, shape), "snapshot_on_oom": True},
    }
    for name in (*states, *runs_of):
        if runs.target.is_rehearsal:
            yield Case(name, checks=(Check("snapshot_read", "skipped", NEEDS_GPU),))
        elif name in runs.kept:
            yield runs.kept[name]
        elif name in states:
            yield _states(runs, name, expandable=states[name])
        else:
            yield _of_run(runs, shape, name, runs_of[name], fails=name == failure)


def _states(runs: Runs, name: str, *, expandable: bool) -> Case:
    program = runs.program(name, "snapshot.py", (), allocator_settings(expandable=expandable))
    if isinstance(program, Unfinished):
        return program.case(name)
    if program.exit_code != 0:
        return Case(name, checks=(not_made(program),), seconds=program.seconds)
    stats = json.loads((program.folder / "stats.json").read_text())
    device = _read(program.folder / "snapshot.pickle")
    if isinstance(device, Check):
        return Case(name, checks=(device,), seconds=program.seconds, facts={"torch": stats})
    read = device.model_dump(mode="json", exclude={"holders"})
    return Case(name, checks=tuple(_same_sums(device, stats)), seconds=program.seconds,
                facts={"torch": stats, "reader": read})  # fmt: skip


def _same_sums(device: DeviceMemory, stats: Mapping[str, int]) -> Iterator[Check]:
    """Compare each of the reader's sums to the counter with the same meaning."""
    free = device.releasable_bytes + device.stranded_bytes + device.private_free_bytes
    pairs = {
        "allocated": (device.allocated_bytes, stats["allocated_bytes"]),
        "reserved": (device.reserved_bytes, stats["reserved_bytes"]),
        "pending": (device.pending_bytes, stats["active_bytes"] - stats["allocated_bytes"]),
        "free": (free, stats["reserved_bytes"] - stats["active_bytes"]),
    }
    for name, (read, counted) in pairs.items():
        yield judged(f"same_{name}", holds=read == counted, found=f"reader {read}, torch {counted} bytes")


def _of_run(runs: Runs, shape: Shape, name: str, asked: dict[str, Any], *, fails: bool) -> Case:
    ran = runs.run(name, shape, **asked)
    if isinstance(ran, Unfinished):
        return ran.case(name)
    found = [*(checks.out_of_memory(ran) if fails else (checks.trained(ran),))]
    if ran.record is not None:
        found += [] if fails else [checks.not_suspect(ran.record)]
    device = _read(ran.folder / "ranks" / "snapshot_000.pickle")
    if isinstance(device, Check):
        found.append(device)
    elif ran.record is not None:
        found += [*(_of_failure if fails else _of_step)(device, ran.record)]
    return case_of_run(name, tuple(found), ran.seconds, ran.record)


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
