"""Ctrl-C and termination as a value that a loop looks at, instead of an exception at any line."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """``signal``: the first one received, or None. ``insisted``: a second one came, so do not wait any longer."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.insisted = False

    def receive(self, number: int, _frame: FrameType | None = None) -> None:
        """The signal handler."""
        self.insisted = self.signal is not None
        self.signal = self.signal or signal.Signals(number)


@contextmanager
def interruption() -> Iterator[Interruption]:
    """Catch SIGINT, SIGTERM and SIGHUP inside the block; the former handlers come back after it.

    Python allows handlers in the main thread only; elsewhere the block runs without them.
    """
    caught = Interruption()
    outer = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    if isinstance(outer, Interruption):  # a signal that came just before belongs to this block as well
        caught.signal = outer.signal
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    former = {number: signal.signal(number, caught.receive) for number in HANDLED}
    try:
        yield caught
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        if isinstance(outer, Interruption):  # one that came too late for this block is not lost
            outer.signal = outer.signal or caught.signal
