"""Compares a log that grows again and again, and shows the answer in one line."""

import time
from collections.abc import Callable
from pathlib import Path

from harness.compare.foreign import ForeignAnswer, ForeignRequest, compare_foreign
from harness.compare.show import foreign_line
from harness.foreign.logs.sources import log_sources
from harness.show.page import plain
from harness.show.terminal import narration
from harness.units import shortened

_PAUSE_S = 2.0


def followed(request: ForeignRequest, pause: Callable[[float], None] = time.sleep) -> ForeignAnswer:
    """Return the last answer: that after the end or the failure of the job, or at Ctrl-C.

    A terminal shows each answer in place of the one before; elsewhere the end shows the last.
    """
    console = narration()
    if not console.is_terminal:
        console.print(f"Following {request.ours.given}: the answer comes when the job ends, or at Ctrl-C")
    with console.status("Reading the log") as line:
        size, answer = _size(request), compare_foreign(request)
        try:
            while answer.is_growing:
                line.update(shortened(plain(foreign_line(answer).words), console.width - 3))
                pause(_PAUSE_S)
                if (now := _size(request)) != size:
                    size, answer = now, compare_foreign(request)
        except KeyboardInterrupt:
            return answer
    return answer


def _size(request: ForeignRequest) -> int:
    return sum(Path(source.path).stat().st_size for source in log_sources(request.ours.paths) if source.path)
