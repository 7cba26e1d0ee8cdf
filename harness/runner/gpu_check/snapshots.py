"""Real memory snapshots through the reader: its sums against torch's own counters, and those of runs."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.analysis.snapshots.values import DeviceMemory
from harness.errors import BadRequestError
from harness.records.run import RunRecord
from harness.runner.gpu_check.case import Case, Unfinished, case_name, figures_of
from harness.runner.gpu_check.checks import Check, judged, out_of_memory, trained
from harness.runner.gpu_check.ooms import allocator_settings, not_made
from harness.runner.gpu_check.runs import Runs
from harness.runner.gpu_check.shapes import Shape, options_of
from harness.runner.gpu_check.stages import oversize
from harness.runner.snapshots.reading import fullest_device, snapshot_summary
from harness.units import format_bytes

PROGRAM = "snapshot.py"
NEEDS_GPU = "needs a GPU: torch takes snapshots of its CUDA allocator only"
# A failed request is printed with two decimals of its unit.
ROUNDING = 0.01


def read_snapshots(runs: Runs, shape: Shape) -> Iterator[Case]:
    """One of every state of the allocator, without and with expandable segments; one of a step; one of a failure."""
    cases = {case_name("snapshot", *parts): parts for parts in (("states",), ("states", "expandable"))}
    step, failure = (case_name(shape.name, kind) for kind in ("snapshot", "snapshot_on_oom"))
    runs_of = {step: {"recompute": "none"}, failure: oversize(runs.target, shape)}
    for name in (*cases, *runs_of):
        kept = runs.kept_case(name, shape, **runs_of[name]) if name in runs_of else runs.kept.get(name)
        if kept:
            yield kept
        elif runs.target.is_rehearsal:
            yield Case(name, checks=(Check("snapshot_read", "skipped", NEEDS_GPU),))
        elif name in cases:
            yield _states(runs, name, expandable="expandable" in cases[name])
        else:
            yield _of_run(runs, shape, name, runs_of[name], fails=name == failure)


def _states(runs: Runs, name: str, *, expandable: bool) -> Case:
    program = runs.program(name, PROGRAM, (), allocator_settings(expandable=expandable))
    if isinstance(program, Unfinished):
        return program.case(name)
    if program.exit_code != 0:
        return Case(name, checks=(not_made(program),), seconds=program.seconds)
    stats = json.loads((program.folder / "stats.json").read_text())
    device = _read(program.folder / "snapshot.pickle")
    checks = (device,) if isinstance(device, Check) else tuple(same_sums(device, stats))
    read = None if isinstance(device, Check) else device.model_dump(mode="json", exclude={"holders", "levels"})
    return Case(name, checks=checks, seconds=program.seconds, facts={"torch": stats, "reader": read})


def same_sums(device: DeviceMemory, stats: Mapping[str, int]) -> Iterator[Check]:
    """The reader's sums, each with the counter that says the same."""
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
    recorded = "--snapshot_on_oom" if fails else "--memory_snapshot"
    ran = runs.run(name, (*shape.options(runs.target), recorded, *options_of(asked)))
    if isinstance(ran, Unfinished):
        return ran.case(name)
    checks = [*(out_of_memory(ran) if fails else (trained(ran),))]
    device = _read(ran.run_dir / "ranks" / "snapshot_000.pickle")
    if isinstance(device, Check):
        checks.append(device)
    elif ran.record is not None:
        checks += [*(of_failure if fails else of_step)(device, ran.record)]
    return Case(name, "none", tuple(checks), figures_of(ran.record), ran.seconds, ran.record)


def of_step(device: DeviceMemory, record: RunRecord) -> Iterator[Check]:
    """A step recorded beside the measured ones stays within their peaks, and its memory has owners and phases."""
    memory = record.ranks[0].memory
    reserved = memory.max_reserved_bytes if memory else None
    most = f"{format_bytes(device.reserved_bytes)} reserved, the run's most {format_bytes(reserved or 0)}"
    yield judged("within_peak", holds=0 < device.reserved_bytes <= (reserved or 0), found=most)
    modules = sorted({holder.module for holder in device.holders if holder.peak_bytes})
    yield judged("has_holders", holds=len(modules) > 1, found=", ".join(modules) or "no holder has a stack")
    phases = [phase.name for phase in device.levels.phases] if device.levels else []
    holds = {"forward_backward", "optimizer_step"} <= set(phases)
    yield judged("has_phases", holds=holds, found=", ".join(phases) or device.history_problem or "none")


def of_failure(device: DeviceMemory, record: RunRecord) -> Iterator[Check]:
    """The last failure of the history is the one that the rank was ended by."""
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
