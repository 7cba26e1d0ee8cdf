"""What all processes of a launch agree on: who outlives whom, how an end is named, and who may read their files."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

# Set for a started process to the pid of the one that must outlive it.
PARENT_PID_VARIABLE = "MBR_PERF_PARENT_PID"

HANG_TIMEOUT_S = 600.0
SAMPLE_INTERVAL_MS = 50

OF_PROCESSES = 0o027
"""Of agents, ranks and samplers: the group may read, as it may in run folders."""

_OF_OTHERS = 0o007


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; real-time signals have no name of their own."""
    known = {int(member): member.name for member in signal.Signals}
    return known.get(number, f"signal {number}")


def ended_how(exit_code: int) -> str:
    """``was killed by SIGKILL`` for -9, ``exited with code 1`` for 1."""
    return f"was killed by {signal_name(-exit_code)}" if exit_code < 0 else f"exited with code {exit_code}"


def open_log(path: Path) -> BinaryIO:
    """Open a log file to append to, made for this user to write and the group to read."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640), "ab")


@contextmanager
def closed_to_others() -> Iterator[None]:
    """Inside the block, what this process makes is closed to other users; the group has what the shell gives it."""
    before = os.umask(OF_PROCESSES)  # the kernel tells the old one only in exchange for another
    os.umask(before | _OF_OTHERS)
    try:
        yield
    finally:
        os.umask(before)
