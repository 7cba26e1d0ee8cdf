"""What a foreign log says of each rank, as rank records; ranks of which it says nothing get none."""

import math
from collections.abc import Iterable, Mapping
from typing import Literal

from harness.judging.oom.failure_scan import RankFailure
from harness.judging.oom.failure_signs import FailureKind
from harness.judging.oom.first_failure import FirstFailure
from harness.records.foreign.log import ForeignLog, Iteration
from harness.records.rank import Failure, MemoryRecord, RankRecord, StepRecord

METER = "log"
UNKNOWN = "unknown"  # a host that the log does not name

_KINDS: Mapping[FailureKind, Literal["oom", "signal", "error", "lost"]] = {
    "oom": "oom",
    "signal": "signal",
    "error": "error",
    "peer": "lost",
}


def clock_rank(log: ForeignLog, world_size: int) -> tuple[int, bool]:
    """Who printed the iterations, and whether the log tells; both formats print them on the last rank."""
    told = {one.rank for one in log.iterations}
    rank = told.pop() if len(told) == 1 else None
    return (world_size - 1, False) if rank is None or rank >= world_size else (rank, True)


def rank_records(
    log: ForeignLog, failure: FirstFailure | None, world_size: int, *, ended_well: bool
) -> tuple[RankRecord, ...]:
    """Records of the ranks that the log tells anything about, by number; step times are the clock rank's.

    ``failure``: None where the job got over what the log shows. One whose rank is not told, or is not one of
    ``world_size``, belongs to no rank.
    """
    clock = clock_rank(log, world_size)[0]
    memory, failures = _memory(log), _failures(failure)
    told = {*memory, *failures, *([clock] if log.iterations else [])}
    return tuple(
        RankRecord(
            rank=rank,
            world_size=world_size,
            hostname=(failures[rank].host if rank in failures else None) or UNKNOWN,
            pid=0,
            finished=ended_well,
            failure=_failure(failures[rank], failure) if rank in failures else None,
            steps=step_records(log.iterations) if rank == clock else (),
            memory=_with_figures(memory.get(rank), failures.get(rank), failure),
        )
        for rank in sorted(told)
        if 0 <= rank < world_size
    )


def step_records(iterations: Iterable[Iteration]) -> tuple[StepRecord, ...]:
    """Iterations with a time, counted from 0; losses and norms that are no numbers are left out."""
    return tuple(
        StepRecord(
            step=one.number - 1, seconds=one.step_time_s, loss=_finite(one.loss), grad_norm=_finite(one.grad_norm)
        )
        for one in iterations
        if one.step_time_s is not None and math.isfinite(one.step_time_s) and one.step_time_s > 0
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _memory(log: ForeignLog) -> dict[int, MemoryRecord]:
    """The highest of every counter over a rank's reports."""
    allocated, reserved, used = (
        log.highest(read)
        for read in (
            lambda one: one.max_allocated_bytes,
            lambda one: one.max_reserved_bytes,
            lambda one: one.device_used_bytes,
        )
    )
    return {
        rank: MemoryRecord(
            meter=METER,
            max_allocated_bytes=allocated.get(rank),
            max_reserved_bytes=reserved.get(rank),
            max_device_used_bytes=used.get(rank),
        )
        for rank in {one.rank for one in log.memory}
    }


def _highest(*values: int | None) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _failures(failure: FirstFailure | None) -> dict[int, RankFailure]:
    """The first failure of every rank that is told; the one that came first wins."""
    found: dict[int, RankFailure] = {}
    for one in (failure.failure, *failure.also, *failure.victims) if failure else ():
        if one.rank is not None:
            found.setdefault(one.rank, one)
    return found


def _failure(one: RankFailure, first: FirstFailure | None) -> Failure:
    """Steps count from 0: after iteration 2, a phase is that of step 2, and the step that ended is step 1."""
    step = one.after_step
    if step is not None and not one.phase:
        step = step - 1 if step else None
    return Failure(
        kind=_KINDS[one.kind],
        message=one.text,
        phase=one.phase or ("step" if one.after_step else None),
        step=step,
        request_bytes=first.verdict.request_bytes if first and one is first.failure else None,
    )


def _with_figures(
    memory: MemoryRecord | None, one: RankFailure | None, first: FirstFailure | None
) -> MemoryRecord | None:
    """With what the message of the allocator adds: the size of the device, and what was in use when it gave up."""
    figures = first.verdict.figures if first and one is first.failure else None
    if figures is None:
        return memory
    before = memory or MemoryRecord(meter=METER)
    added = {
        "max_allocated_bytes": _highest(before.max_allocated_bytes, figures.allocated_bytes),
        "max_reserved_bytes": _highest(before.max_reserved_bytes, figures.reserved_bytes),
        "device_total_bytes": figures.total_bytes,
    }
    return before.model_copy(update=added) if any(value is not None for value in added.values()) else memory
