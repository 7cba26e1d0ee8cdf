"""Combines readings of all ranks: step times of the slowest rank, memory of the fullest, and the limiting clocks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import mean, median
from typing import Any

from harness.experiment.experiment import MIN_STEPS
from harness.failures.entries import is_of_peer
from harness.records.metrics import Peak, RunClocks
from harness.records.rank import (
    CLOCK_REASONS,
    IDLE,
    POWER_CAP,
    SLOWDOWNS,
    ClockSamples,
    Failure,
    MemoryRecord,
    RankClocks,
    RankRecord,
)
from harness.records.run import NodeSample
from harness.units import counted, format_seconds


@dataclass(frozen=True)
class Window:
    """Steps ``[start, end)``: seconds of each step that every rank recorded, and the other steps."""

    start: int
    end: int
    seconds: tuple[float, ...]
    missing: tuple[int, ...]

    @property
    def problem(self) -> str | None:
        """Say why the window does not allow a verdict; None if it does."""
        if self.end <= self.start:
            return f"no measured step from step {self.start} on and before step {self.end}"
        if self.missing:
            of = len(self.missing) + len(self.seconds)
            return f"{len(self.missing)} of {of} measured steps are missing, the first is {self.missing[0]}"
        if len(self.seconds) < MIN_STEPS:
            return f"{counted(len(self.seconds), 'measured step')}; at least {MIN_STEPS} are needed"
        return None


_SHORTEST_VALID_S = 1e-30  # with shorter times, figures such as FLOP/s may overflow


def window_of(ranks: Sequence[RankRecord], world_size: int, start: int, end: int, *, every: int = 1) -> Window:
    """Return step times over ``[start, end)``: the slowest rank's, for which the others wait.

    A step is missing if any of ``world_size`` ranks did not record it, or recorded less than 1e-30 s. ``every``: a
    record covers this many steps and has the number of the last; it does not count if some of its steps are outside the
    window.
    """
    times = [{step.step: step.seconds for step in rank.steps if step.seconds >= _SHORTEST_VALID_S} for rank in ranks]
    whole = len(times) >= world_size
    expected = [step for step in range(start + every - 1, end) if (step + 1) % every == 0]
    complete = [step for step in expected if whole and all(step in rank for rank in times)]
    missing = tuple(sorted(set(expected).difference(complete)))
    return Window(start, end, tuple(max(rank[step] for rank in times) for step in complete), missing)


def is_victim(failure: Failure) -> bool:
    """Return whether another rank's failure explains this failure: a lost connection, or torchrun's SIGTERM."""
    if failure.kind == "signal":
        return "SIGTERM" in failure.message
    return failure.kind == "error" and is_of_peer(failure.message)


def worst_rank(ranks: Sequence[RankRecord], world_size: int, read: Callable[[RankRecord], int | None]) -> Peak | None:
    """Return the largest reading over ranks (the lowest rank if equal); None without a reading."""
    readings = {rank.rank: value for rank in ranks if (value := read(rank)) is not None}
    if not readings:
        return None
    worst = max(sorted(readings), key=lambda rank: readings[rank])
    stages = {rank.rank: rank.coordinates.pp for rank in ranks}
    missing = tuple(rank for rank in range(world_size) if rank not in readings)
    return Peak(readings[worst], worst, stages[worst], missing)


def allocated(rank: RankRecord) -> int | None:
    """Return the peak bytes in live tensors."""
    return rank.memory.max_allocated_bytes if rank.memory else None


def reserved(rank: RankRecord) -> int | None:
    """Return the peak bytes held by the caching allocator."""
    return rank.memory.max_reserved_bytes if rank.memory else None


def device_used(nodes: Sequence[NodeSample]) -> Callable[[RankRecord], int | None]:
    """Make a reader of the peak bytes in use on a rank's device by all processes, from NVML samples by GPU UUID."""
    sampled = {
        bare_uuid(device.uuid): device.max_used_bytes
        for node in nodes
        for device in node.devices
        if device.num_samples > 0
    }

    def read(rank: RankRecord) -> int | None:
        own = (rank.memory or MemoryRecord(meter="none")).max_device_used_bytes
        if own is not None or rank.device is None or rank.device.uuid is None:
            return own
        return sampled.get(bare_uuid(rank.device.uuid))

    return read


def bare_uuid(uuid: str) -> str:
    """Return the UUID without NVML's prefix ``GPU-``, as torch prints it."""
    return uuid.lower().removeprefix("gpu-")


# A slow disk or a busy driver may delay a sample. After a longer gap, a part of the window is unknown.
_LONGEST_GAP_S = 10.0
_GAP_IN_INTERVALS = 5


def rank_clocks(
    ranks: Iterable[RankRecord], nodes: Iterable[NodeSample], window: tuple[int, int]
) -> dict[int, RankClocks]:
    """Return the NVML clocks of each rank's sampled GPU over the steps [start, end), by rank."""
    sampled = {bare_uuid(device.uuid): device.clocks for node in nodes for device in node.devices}
    return {
        rank.rank: _over(_span(rank, window), clocks)
        for rank in ranks
        if rank.device and rank.device.uuid and (clocks := sampled.get(bare_uuid(rank.device.uuid)))
    }


def with_clocks(
    ranks: tuple[RankRecord, ...], nodes: Sequence[NodeSample], window: tuple[int, int]
) -> tuple[RankRecord, ...]:
    """Add the clocks over the window to the ranks, for the run's record."""
    found = rank_clocks(ranks, nodes, window)
    return tuple(rank.model_copy(update={"clocks": found.get(rank.rank)}) for rank in ranks)


def run_clocks(each: Mapping[int, RankClocks]) -> RunClocks | None:
    """Return the clocks that limit the speed of a run, from the clocks of its ranks; None without NVML data."""
    clocks = {rank: own.sm_clock_mhz for rank, own in each.items() if own.sm_clock_mhz is not None}
    shares = {rank: own.power_cap_share for rank, own in each.items() if own.power_cap_share is not None}
    if not clocks and not shares:
        return None
    slowest = min(clocks, key=lambda rank: clocks[rank], default=None)
    capped = max(shares, key=lambda rank: shares[rank], default=None)
    return RunClocks(
        sm_clock_mhz=None if slowest is None else clocks[slowest],
        slowest_rank=slowest,
        power_cap_share=None if capped is None else shares[capped],
        most_capped_rank=capped,
        over="run" if any(own.over == "run" for own in each.values()) else "window",
    )


def median_or_none(values: Sequence[float | None]) -> float | None:
    """Return the median; None if a value is missing."""
    present = [value for value in values if value is not None]
    return median(present) if len(present) == len(values) else None


def combined_clocks(runs: Sequence[RunClocks | None]) -> RunClocks | None:
    """Combine the clocks of repeats. None where a run has no clocks."""
    present = [run for run in runs if run is not None]
    if not present or len(present) < len(runs):
        return None
    return replace(
        present[0],
        sm_clock_mhz=median_or_none([run.sm_clock_mhz for run in present]),
        power_cap_share=median_or_none([run.power_cap_share for run in present]),
        over="run" if any(run.over == "run" for run in present) else "window",
    )


def clock_doubts(own: RankClocks) -> list[str]:
    """Return why the clocks of a GPU make its times unreliable. The power cap does not: a busy GPU works at it."""
    found = []
    if own.slowdowns:
        found.append(f"was throttled: {', '.join(own.slowdowns)}")
    if own.over == "run" or own.window_s is None:
        return found
    if not own.num_samples:
        found.append(f"was not sampled during the measured steps, which took {format_seconds(own.window_s)}")
    elif (own.longest_gap_s or 0.0) > max(_LONGEST_GAP_S, _GAP_IN_INTERVALS * (own.interval_s or 0.0)):
        found.append(f"was not sampled for {own.longest_gap_s:.0f} s of the {own.window_s:.0f} s of the measured steps")
    return found


def _span(rank: RankRecord, window: tuple[int, int]) -> tuple[float, float] | None:
    """Return start of the first and end of the last step of the window; None if a step has no time."""
    start, end = window
    steps = [step for step in rank.steps if start <= step.step < end]
    ends = [step.ended_s for step in steps if step.ended_s is not None]
    if not steps or len(ends) < len(steps):
        return None
    return min(ended - step.seconds for ended, step in zip(ends, steps, strict=True)), max(ends)


def _over(span: tuple[float, float] | None, samples: ClockSamples) -> RankClocks:
    start, end = span or (float("-inf"), float("inf"))
    looks = zip(samples.times_s, samples.sm_clocks_mhz, samples.reasons, strict=True)
    inside = [(clock, reasons) for at, clock, reasons in looks if start <= at <= end]
    busy = [look for look in inside if not (look[1] or 0) & IDLE]
    return RankClocks(
        over="run" if span is None else "window",
        num_samples=len(inside),
        slowdowns=_slowdowns(reasons for _, reasons in inside if reasons),
        **_of_busy(busy),
        **(_coverage(samples, span) if span else {}),
    )


def _slowdowns(reasons: Iterable[int]) -> tuple[str, ...]:
    seen = {name for each in reasons for bit, name in CLOCK_REASONS.items() if each & bit}
    return tuple(name for name in SLOWDOWNS if name in seen)


def _of_busy(looks: Sequence[tuple[float | None, int | None]]) -> dict[str, Any]:
    clocks = [clock for clock, _ in looks if clock is not None]
    capped = [bool(reasons & POWER_CAP) for _, reasons in looks if reasons is not None]
    return {
        "num_busy_samples": len(looks),
        "sm_clock_mhz": float(median(clocks)) if clocks else None,
        "power_cap_share": round(mean(capped), 4) if capped else None,
    }


def _coverage(samples: ClockSamples, span: tuple[float, float]) -> dict[str, Any]:
    start, end = span
    edges = [start, *(at for at in samples.times_s if start < at < end), end]
    gaps = [after - before for before, after in pairwise(samples.times_s)]
    return {
        "window_s": round(end - start, 3),
        "longest_gap_s": round(max(after - before for before, after in pairwise(edges)), 3),
        "interval_s": round(median(gaps), 3) if gaps else 0.0,
    }
