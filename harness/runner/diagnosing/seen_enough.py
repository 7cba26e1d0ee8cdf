"""Ctrl-C while logs are read: the answer is made of what was read until then."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from harness.records.logs.passage import Passage


@contextmanager
def stopped_by_ctrl_c(passage: Passage) -> Iterator[None]:
    """The first Ctrl-C stops ``passage``, the second ends the program; outside of the block both do as before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def stop(_number: int, _frame: FrameType | None) -> None:
        passage.is_stopped = True
        passage.notes.append(f"Interrupted: this is by the first {passage.num_bytes / 1e6:.1f} MB of the logs.")
        signal.signal(signal.SIGINT, before)

    if not callable(before):  # ignored, as by a shell that starts us in the background
        yield
        return
    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
