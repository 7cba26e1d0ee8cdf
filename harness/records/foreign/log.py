"""Values read from a log, by attempt."""

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Literal

from harness.records.foreign.lines import StepTimeLine

LogFormat = Literal["bridge", "megatron-lm"]


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration of the log, counted from 1. Seconds and TFLOP/s/GPU; None where the log does not say.

    ``loss`` and ``grad_norm`` may be NaN or infinite. ``rank`` is the one that printed the line, where a prefix or the
    file's name tells it. Figures are means over the iterations since the line before.
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

    @property
    def is_loss_broken(self) -> bool:
        """Whether the line says that the loss was no number; trainers also leave such a loss out."""
        return bool(self.nan_iterations) or (self.loss is not None and not math.isfinite(self.loss))


@dataclass(frozen=True, slots=True)
class RankMemory:
    """torch's counters of one rank after ``iteration``, in bytes; peaks since the start. None: not said."""

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
    """The largest value that any rank reported, and where."""

    value: int
    rank: int
    iteration: int
    where: str


@dataclass(frozen=True)
class ForeignLog:
    """A parsed log. ``format`` is None where no line tells whose it is.

    ``iterations`` are in order, each number once: of one that was trained again after a restart, the last. ``total`` is
    the number of iterations that the job announced. ``ended``: a line says that training came to its end.
    ``world_size`` is None unless a line tells it. ``first_time`` and ``last_time`` are as the log writes them: of iterations,
    where those have any. ``notes`` are for people: restarts, lines that fit nowhere.
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

    @property
    def interval(self) -> int:
        """Iterations from one line to the next, where they are evenly spaced; the usual gap where they are not."""
        numbers = [one.number for one in self.iterations]
        gaps = sorted(later - earlier for earlier, later in pairwise(numbers))
        return gaps[len(gaps) // 2] if gaps else 1

    @property
    def truncated(self) -> str | None:
        """Why the log is not of a whole run; None where it is, or announces no end."""
        if not self.iterations or self.total is None or self.ended:
            return None
        last = self.iterations[-1]
        if last.number + self.interval > self.total:
            return None
        return f"the log ends at iteration {last.number} of {self.total} ({last.where})"

    def highest(self, read: Callable[[RankMemory], int | None]) -> dict[int, int]:
        """The highest of a counter over the reports of each rank that says it."""
        found: dict[int, int] = {}
        for one in self.memory:
            value = read(one)
            if value is not None:
                found[one.rank] = max(value, found.get(one.rank, value))
        return found

    def worst(self, field: str) -> WorstRank | None:
        """The largest ``field`` of :class:`RankMemory` over all ranks and iterations; None where no rank says it."""
        told = [(value, one) for one in self.memory if (value := getattr(one, field)) is not None]
        if not told:
            return None
        value, one = max(told, key=lambda pair: (pair[0], -pair[1].iteration, -pair[1].rank))
        return WorstRank(value, one.rank, one.iteration, one.where)


_MAX_NOTES = 5
_MAX_RESTARTS = 1000
# About 200 MB; of a log of more the first are let go.
MAX_ITERATIONS = 500_000


class Attempts:
    """What the last attempt says of every iteration, and what those before say of the iterations it did not repeat."""

    def __init__(self, most: int = MAX_ITERATIONS) -> None:
        self._most = most
        self._let_go = 0
        self._known: OrderedDict[int, Iteration] = OrderedDict()
        self._last = 0
        self.restarts: list[int] = []
        self.notes: list[str] = []

    def add(self, new: Iteration) -> None:
        """The line of one more iteration.

        The same figures again are another rank's print, or another file with the same output. Other figures of an
        iteration that was there mean that the job went back to a checkpoint: what it had done from there on is gone.
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
        """In order of their numbers."""
        return tuple(self._known.values())

    def all_notes(self) -> list[str]:
        """Restarts, and how much was let go."""
        let_go = [f"the first {self._let_go} iterations are left out, for there are very many"] if self._let_go else []
        return [*self.notes, *let_go]

    def _restart(self, new: Iteration) -> None:
        if len(self.restarts) < _MAX_RESTARTS:
            self.restarts.append(new.number)
        if len(self.notes) < _MAX_NOTES:
            self.notes.append(f"the job restarted: from iteration {self._last} back to {new.number} ({new.where})")
        while self._known and next(reversed(self._known)) >= new.number:  # their order is that of their numbers
            self._known.popitem()


def _is_the_same(known: Iteration, new: Iteration) -> bool:
    """Whether all figures that both lines tell are equal, and there is one."""
    pairs = [
        (getattr(known, name), getattr(new, name))
        for name in ("step_time_s", "loss", "grad_norm", "consumed_samples")
        if getattr(known, name) is not None and getattr(new, name) is not None
    ]
    return bool(pairs) and all(repr(one) == repr(other) for one, other in pairs)


def _filled(known: Iteration, new: Iteration) -> Iteration:
    """``known`` with what only ``new`` tells."""
    missing = {f.name: getattr(new, f.name) for f in fields(known) if getattr(known, f.name) is None}
    return replace(known, **missing) if any(value is not None for value in missing.values()) else known


# Rank 0 and the last rank time the same interval by their own clocks; Step Time has two decimals.
_ROUNDING_S = 0.006
_CLOCKS = 0.02
# A single line directly before is the iteration's unless the times are of different things.
_OTHER = 0.25
_MAX_WAITING = 1000


@dataclass(frozen=True, slots=True)
class StepTime:
    """One such line and where it stands."""

    line: StepTimeLine
    source: str
    number: int

    def off_by(self, seconds: float) -> float:
        """By how much it differs from an iteration's time, as a share of that."""
        return abs(self.line.seconds - seconds) / max(seconds, 1e-9)

    def agrees(self, seconds: float) -> bool:
        """Whether both can be the time of one iteration."""
        return abs(self.line.seconds - seconds) <= _ROUNDING_S + _CLOCKS * seconds


class WaitingStepTimes:
    """Lines of one stream whose iteration has not come yet. ``unbound``: how many never found theirs."""

    def __init__(self) -> None:
        self._waiting: deque[StepTime] = deque()
        self.unbound = 0
        self.first_unbound: StepTime | None = None

    def add(self, step: StepTime) -> None:
        """One more line; the oldest gives up where very many wait."""
        self._waiting.append(step)
        if len(self._waiting) > _MAX_WAITING:
            self._give_up(self._waiting.popleft())

    def take(self, seconds: float | None) -> StepTime | None:
        """The line of an iteration of that time, the one that agrees best; those before it belong to none.

        Where several agree equally, the oldest: rank 0 may be an iteration ahead of the rank that prints the other line.
        """
        chosen = self._choose(seconds)
        while self._waiting:
            step = self._waiting.popleft()
            if step is chosen:
                return step
            self._give_up(step)
        return None

    def left(self) -> tuple[StepTime, ...]:
        """What still waits at the end of the log."""
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
    """Whether lines of a stream of their own are the iterations' one by one: as many, and every time agrees."""
    return len(steps) == len(seconds) and all(
        time is not None and step.agrees(time) for step, time in zip(steps, seconds, strict=True)
    )
