"""The window of steps that count, and ranks that only suffered from another's failure."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.records.rank import Failure, RankRecord
from harness.units import counted

MIN_STEPS = 3


@dataclass(frozen=True)
class Window:
    """Steps ``[start, end)``: seconds of each that every rank recorded, and the steps that some rank did not."""

    start: int
    end: int
    seconds: tuple[float, ...]
    missing: tuple[int, ...]

    @property
    def problem(self) -> str | None:
        """Why the window is no basis for a verdict; None when it is one."""
        if self.end <= self.start:
            return f"the window [{self.start}, {self.end}) holds no step"
        if self.missing:
            return f"{len(self.missing)} of {len(self.missing) + len(self.seconds)} steps in the window are missing, first {self.missing[0]}"
        if len(self.seconds) < MIN_STEPS:
            return f"{counted(len(self.seconds), 'step')} in the window, at least {MIN_STEPS} are needed"
        return None


def window_of(ranks: Sequence[RankRecord], world_size: int, start: int, end: int, *, every: int = 1) -> Window:
    """Step times over ``[start, end)``: the slowest rank's, because the others wait for it at the next collective.

    A step that any of ``world_size`` ranks did not record is missing, and so is every step when a rank left no record.
    ``every``: a record stands for so many steps, of which it is the last; those that reach out of the window do not count.
    """
    times = [{step.step: step.seconds for step in rank.steps if step.seconds > 0} for rank in ranks]
    whole = len(times) >= world_size
    expected = [step for step in range(start + every - 1, end) if (step + 1) % every == 0]
    complete = [step for step in expected if whole and all(step in rank for rank in times)]
    missing = tuple(sorted(set(expected).difference(complete)))
    return Window(start, end, tuple(max(rank[step] for rank in times) for step in complete), missing)


_PEER_TEXTS = ("Connection closed by peer", "Connection reset by peer", "NCCL", "Broken pipe", "Socket Timeout")


def is_victim(failure: Failure) -> bool:
    """Whether another rank's end explains this one: a lost connection, or torchrun's SIGTERM to those that are left."""
    if failure.kind == "signal":
        return "SIGTERM" in failure.message
    return failure.kind == "error" and any(text in failure.message for text in _PEER_TEXTS)
