"""Values read from a log, by attempt of the job."""

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import pairwise, takewhile
from typing import Literal

from harness.foreign.lines import StepTimeLine

LogFormat = Literal["bridge", "megatron-lm"]


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration of the log, counted from 1. Seconds and TFLOP/s/GPU; None if the log does not have the value.

    ``loss`` and ``grad_norm`` may be NaN or infinite. ``rank``: the rank that printed the line, from a prefix or the
    file's name. Figures are means over the iterations since the previous line. ``is_cut``: the line has no end.
    """

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
    """A parsed log. ``format`` is None if no line shows which trainer wrote it.

    ``iterations``: in order, each number once; if a restart trained it again, the last. ``total``: the number of
    iterations that the job announced. ``ended``: a line says that training ended. ``world_size``: None unless a line
    has it. ``first_time`` and ``last_time``: as in the log, of iterations if these have times. ``notes``: for the user,
    such as restarts and unmatched lines. ``has_other_losses``: a line has a loss that is not ``lm loss``.
    """

    format: LogFormat | None
    sources: tuple[str, ...]
    iterations: tuple[Iteration, ...] = ()
    memory: tuple[RankMemory, ...] = ()
    total: int | None = None
    world_size: int | None = None
    ended: bool = False
    restarts: tuple[int, ...] = ()
    num_lines: int = 0
    first_time: str | None = None
    last_time: str | None = None
    notes: tuple[str, ...] = ()
    has_other_losses: bool = False

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
        """Return where losses or gradients stopped being finite; None if they did not.

        Trainers leave a loss that is NaN out of the line, and some do not count it. Skipped iterations have no loss,
        and their norm may overflow: that is how a loss scale is found, unless the log ends with many of them.
        """
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

    def worst(self, field: str) -> WorstRank | None:
        """Return the largest ``field`` of :class:`RankMemory` over ranks and iterations; None if not reported."""
        found = [(value, report) for report in self.memory if (value := getattr(report, field)) is not None]
        if not found:
            return None
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
    if row.loss is not None and not math.isfinite(row.loss):
        return f"the loss is {row.loss}"
    if row.grad_norm is not None and not math.isfinite(row.grad_norm):
        return f"the gradient norm is {row.grad_norm}{'' if row.loss is not None else ' and the loss is missing'}"
    if row.nan_iterations:
        return f"{row.nan_iterations} nan iterations are counted"
    return "the loss is missing (Megatron prints no loss that is NaN)"


_MAX_NOTES = 5
_MAX_RESTARTS = 1000
# About 200 MB. From longer logs, the first iterations are dropped.
MAX_ITERATIONS = 500_000


class Attempts:
    """The values of each iteration from the last attempt that trained it."""

    def __init__(self, most: int = MAX_ITERATIONS) -> None:
        self._most = most
        self._let_go = 0
        self._known: OrderedDict[int, Iteration] = OrderedDict()
        self._last = 0
        self.restarts: list[int] = []
        self.notes: list[str] = []

    def add(self, new: Iteration) -> None:
        """Add the line of an iteration.

        A repeated iteration with the same figures comes from another rank or another file. With other figures, the job
        went back to a checkpoint: drop the iterations that it had done from there on.
        """
        known = self._known.get(new.number)
        if known is not None and _is_the_same(known, new):
            self._known[new.number] = _filled(known, new)
            return
        if new.number <= self._last:
            self._restart(new)
        self._known[new.number] = new
        self._last = new.number
        if len(self._known) > self._most:
            self._known.popitem(last=False)
            self._let_go += 1

    def iterations(self) -> tuple[Iteration, ...]:
        """Return the iterations in order of their numbers."""
        return tuple(self._known.values())

    def all_notes(self) -> list[str]:
        """Return notes on restarts and on dropped iterations."""
        let_go = [f"the log is very long; its first {self._let_go} iterations are left out"] if self._let_go else []
        return [*self.notes, *let_go]

    def _restart(self, new: Iteration) -> None:
        if len(self.restarts) < _MAX_RESTARTS:
            self.restarts.append(new.number)
        if len(self.notes) < _MAX_NOTES:
            self.notes.append(f"the job restarted: from iteration {self._last} back to {new.number} ({new.where})")
        while self._known and next(reversed(self._known)) >= new.number:  # their order is that of their numbers
            self._known.popitem()


def _is_the_same(known: Iteration, new: Iteration) -> bool:
    shares = False
    for left, right in (
        (known.step_time_s, new.step_time_s),
        (known.loss, new.loss),
        (known.grad_norm, new.grad_norm),
        (known.consumed_samples, new.consumed_samples),
    ):
        if left is not None and right is not None:
            if left != right and not (math.isnan(left) and math.isnan(right)):
                return False
            shares = True
    return shares


_FIELDS = tuple(each.name for each in fields(Iteration))


def _filled(known: Iteration, new: Iteration) -> Iteration:
    missing = [name for name in _FIELDS if getattr(known, name) is None and getattr(new, name) is not None]
    return replace(known, **{name: getattr(new, name) for name in missing}) if missing else known


# Rank 0 and the last rank time the same interval by their own clocks; Step Time has two decimals.
_ROUNDING_S = 0.006
_CLOCKS = 0.02
# A single line directly before belongs to the iteration, unless the two times differ too much.
_OTHER = 0.25
_MAX_WAITING = 1000


@dataclass(frozen=True, slots=True)
class StepTime:
    """A Step Time line and its place in the log."""

    line: StepTimeLine
    source: str
    number: int

    def off_by(self, seconds: float) -> float:
        """Return the difference from an iteration's time, as a fraction of that time."""
        return abs(self.line.seconds - seconds) / max(seconds, 1e-9)

    def agrees(self, seconds: float) -> bool:
        """Return whether both can be the time of the same iteration."""
        return abs(self.line.seconds - seconds) <= _ROUNDING_S + _CLOCKS * seconds


class WaitingStepTimes:
    """Step Time lines of one stream that wait for their iteration. ``unbound``: how many never found it."""

    def __init__(self) -> None:
        self._waiting: deque[StepTime] = deque()
        self.unbound = 0
        self.first_unbound: StepTime | None = None

    def add(self, step: StepTime) -> None:
        """Add a line. If very many lines wait, drop the oldest."""
        self._waiting.append(step)
        if len(self._waiting) > _MAX_WAITING:
            self._give_up(self._waiting.popleft())

    def take(self, seconds: float | None) -> StepTime | None:
        """Take the line that agrees best with an iteration's time; drop the lines before it.

        If several agree equally, take the oldest: rank 0 may be an iteration ahead of the rank that prints iterations.
        """
        chosen = self._choose(seconds)
        while self._waiting:
            step = self._waiting.popleft()
            if step is chosen:
                return step
            self._give_up(step)
        return None

    def left(self) -> tuple[StepTime, ...]:
        """Return the lines that still wait at the end of the log."""
        return tuple(self._waiting)

    def _choose(self, seconds: float | None) -> StepTime | None:
        if seconds is None:
            return self._waiting[-1] if self._waiting else None
        agreeing = [step for step in self._waiting if step.agrees(seconds)]
        if agreeing:
            return min(agreeing, key=lambda step: step.off_by(seconds))
        only = self._waiting[0] if len(self._waiting) == 1 else None
        return only if only is not None and only.off_by(seconds) <= _OTHER else None

    def _give_up(self, step: StepTime) -> None:
        self.unbound += 1
        self.first_unbound = self.first_unbound or step


def in_order(steps: list[StepTime], seconds: list[float | None]) -> bool:
    """Return whether the lines match the iterations one by one: the same number, and every time agrees."""
    return len(steps) == len(seconds) and all(
        time is not None and step.agrees(time) for step, time in zip(steps, seconds, strict=True)
    )
