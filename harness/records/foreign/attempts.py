"""Iterations as they come, over restarts of the job and over files that tell the same twice."""

from collections import OrderedDict
from dataclasses import fields, replace

from harness.records.foreign.values import Iteration

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
