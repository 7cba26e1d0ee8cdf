"""What all processes of a launch share: who outlives whom, the words for an exit, and the umask."""

import os
import signal
from pathlib import Path
from typing import BinaryIO

# Holds, for a started process, the pid of the process that must outlive it.
PARENT_PID_VARIABLE = "MBR_PERF_PARENT_PID"

# Of a run folder: the configuration that the ranks give to Megatron-Bridge.
BRIDGE_CONFIG = "bridge_config.yaml"

HANG_TIMEOUT_S = 600.0
SAMPLE_INTERVAL_MS = 50

OF_PROCESSES = 0o027
"""The umask of agents, ranks and samplers: the group may read, as in run folders."""


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9; real-time signals have no name."""
    known = {int(member): member.name for member in signal.Signals}
    return known.get(number, f"signal {number}")


def ended_how(exit_code: int) -> str:
    """Return ``was killed by SIGKILL`` for -9, ``exited with code 1`` for 1."""
    return f"was killed by {signal_name(-exit_code)}" if exit_code < 0 else f"exited with code {exit_code}"


def open_log(path: Path) -> BinaryIO:
    """Open a log file for appending. The user may write it and the group may read it."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640), "ab")
