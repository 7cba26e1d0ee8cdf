"""How far the reading of logs is, for people who wait: one line now and then on stderr."""

import sys
import time
from collections.abc import Callable

from harness.records.logs.passage import Passage

_FIRST_S, _FIRST_ON_TERMINAL_S, _EVERY_S = 5.0, 1.0, 10.0


class LogProgress:
    """To be called as often as one likes; seconds by the monotonic clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._next = self._began + (_FIRST_ON_TERMINAL_S if sys.stderr.isatty() else _FIRST_S)

    def __call__(self, passage: Passage) -> None:
        """``read 310 MB of 1000 MB in 5 s``; nothing once all is read."""
        now = self._clock()
        if now < self._next or passage.num_bytes == passage.total_bytes:
            return
        self._next = now + _EVERY_S
        of = "" if passage.total_bytes is None else f" of {passage.total_bytes / 1e6:.0f} MB"
        waits = "" if passage.num_bytes else "; waiting for input"
        read = f"read {passage.num_bytes / 1e6:.0f} MB{of} in {now - self._began:.0f} s{waits}"
        sys.stderr.write(f"{read}; Ctrl-C answers by what was read\n")
        sys.stderr.flush()
