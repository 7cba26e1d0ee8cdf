"""Values read from a log."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Literal

from harness.records.run import RunRecord

LogFormat = Literal["bridge", "megatron-lm"]


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration, counted from 1; None if the log lacks a value. ``is_cut``: the line has no end."""

    number: int
    where: str
    step_time_s: float | None = None
    tflops_per_gpu: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    consumed_samples: int | None = None
    global_batch_size: int | None = None
    skipped_iterations: int = 0
    nan_iterations: int = 0
    rank: int | None = None
    time: str | None = None
    is_cut: bool = False

    @property
    def is_loss_broken(self) -> bool:
        """Return whether the loss was not a number. Trainers sometimes leave such a loss out of the line."""
        return bool(self.nan_iterations) or (self.loss is not None and not math.isfinite(self.loss))


@dataclass(frozen=True, slots=True)
class NotFinite:
    """The first iteration with a result that is not finite. ``count``: of the ``of`` iterations from there on."""

    first: Iteration
    reason: str
    count: int
    of: int
    is_printed: bool


@dataclass(frozen=True, slots=True)
class RankMemory:
    """torch's counters of one rank after ``iteration``, in bytes. Peaks are since the start. None: not reported."""

    rank: int
    iteration: int
    where: str
    allocated_bytes: int | None = None
    max_allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    max_reserved_bytes: int | None = None
    device_used_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class WorstRank:
    """The largest value that any rank reported, and its place in the log."""

    value: int
    rank: int
    iteration: int
    where: str


@dataclass(frozen=True)
class ForeignLog:
    """A parsed log. ``iterations``: each number once, of a restart the last. ``run``: of mbr-perf, read as a log."""

    format: LogFormat | None
    sources: tuple[str, ...]
    iterations: tuple[Iteration, ...] = ()
    memory: tuple[RankMemory, ...] = ()
    total: int | None = None
    world_size: int | None = None
    ended: bool = False
    run: RunRecord | None = None
    restarts: tuple[int, ...] = ()
    num_lines: int = 0
    first_time: str | None = None
    last_time: str | None = None
    notes: tuple[str, ...] = ()
    has_other_losses: bool = False

    @property
    def is_measured(self) -> bool:
        """Return whether mbr-perf measured the iterations: it did not read them from the log of another program."""
        return self.run is not None and self.run.imported is None

    @property
    def interval(self) -> int:
        """Return the number of iterations from one line to the next; the most usual number if it varies."""
        numbers = [iteration.number for iteration in self.iterations]
        gaps = sorted(later - earlier for earlier, later in pairwise(numbers))
        return gaps[len(gaps) // 2] if gaps else 1

    @property
    def truncated(self) -> str | None:
        """Say why the log does not cover the whole run; None if it does, or if it announces no end."""
        if not self.iterations or self.total is None or self.ended:
            return None
        last = self.iterations[-1]
        if last.number + self.interval > self.total:
            return None
        return f"the log ends at iteration {last.number} of {self.total} ({last.where})"

    def not_finite(self) -> NotFinite | None:
        """Return where losses or gradients stopped being finite, but not while a loss scale is found; else None."""
        has_losses = any(row.loss is not None for row in self.iterations) or self._has_norms_only()
        found = [row for row in self.iterations if _is_broken(row, has_losses=has_losses)]
        tail = list(takewhile(lambda row: row.skipped_iterations, reversed(self.iterations)))
        if not found and len(tail) >= _MANY_SKIPPED and any(_is_printed(row) for row in tail):
            found = tail[::-1]
        if not found:
            return None
        of = sum(row.number >= found[0].number for row in self.iterations)
        first = found[0]
        if not _is_printed(first) and 2 * len(found) < of:  # a line without a loss among many with one
            return None
        return NotFinite(first, _what_is_broken(first), len(found), of, any(_is_printed(row) for row in found))

    def _has_norms_only(self) -> bool:
        norms = [row.grad_norm is not None for row in self.iterations]
        return len(norms) >= _FEWEST_NORMS and all(norms) and not self.has_other_losses

    def highest(self, read: Callable[[RankMemory], int | None]) -> dict[int, int]:
        """Return the highest value of a counter for each rank that reports it."""
        found: dict[int, int] = {}
        for report in self.memory:
            value = read(report)
            if value is not None:
                found[report.rank] = max(value, found.get(report.rank, value))
        return found

    def worst(self, field: str, *, as_in_bridge: bool = False) -> WorstRank | None:
        """Return the largest ``field`` of all ranks, or None. ``as_in_bridge``: allocated of the first report."""
        found = [(value, report) for report in self.memory if (value := getattr(report, field)) is not None]
        if not found:
            return None
        if as_in_bridge and field in ("allocated_bytes", "max_allocated_bytes"):
            first = min(report.iteration for _, report in found)
            found = [each for each in found if each[1].iteration == first]
        value, report = max(found, key=lambda pair: (pair[0], -pair[1].iteration, -pair[1].rank))
        return WorstRank(value, report.rank, report.iteration, report.where)


_MANY_SKIPPED = 20
_FEWEST_NORMS = 3


def _is_printed(row: Iteration) -> bool:
    return row.is_loss_broken or (row.grad_norm is not None and not math.isfinite(row.grad_norm))


def _is_broken(row: Iteration, *, has_losses: bool) -> bool:
    is_missing = has_losses and row.loss is None and not row.is_cut
    return not row.skipped_iterations and (_is_printed(row) or is_missing)


def _what_is_broken(row: Iteration) -> str:
    named = {"the loss": row.loss, "the gradient norm": row.grad_norm}
    broken = [f"{name} is {value}" for name, value in named.items() if value is not None and not math.isfinite(value)]
    if broken:
        return broken[0]
    return (
        "nan iterations are counted" if row.nan_iterations else "the loss is missing (Megatron prints none that is NaN)"
    )
