"""What a training log of Megatron-Bridge or Megatron-LM says, bound to its iterations and ranks."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

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

    def iteration(self, number: int) -> Iteration | None:
        """The iteration of that number, where the log has it."""
        return next((one for one in self.iterations if one.number == number), None)

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

    def worst(self, field: str) -> WorstRank | None:
        """The largest ``field`` of :class:`RankMemory` over all ranks and iterations; None where no rank says it."""
        told = [(value, one) for one in self.memory if (value := getattr(one, field)) is not None]
        if not told:
            return None
        value, one = max(told, key=lambda pair: (pair[0], -pair[1].iteration, -pair[1].rank))
        return WorstRank(value, one.rank, one.iteration, one.where)
