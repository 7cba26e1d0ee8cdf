"""Which iteration a line ``Step Time`` belongs to, which it does not say: the one whose line follows."""

from collections import deque
from dataclasses import dataclass

from harness.records.foreign.record_lines import StepTimeLine

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
