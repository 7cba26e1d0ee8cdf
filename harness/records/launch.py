"""What all processes of a launch share: who outlives whom, children by pid, the words for an exit, the umask."""

import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import BinaryIO

# Holds, for a started process, the pid of the process that must outlive it.
PARENT_PID_VARIABLE = "MBR_PERF_PARENT_PID"

# Of a run folder: the configuration that the ranks give to Megatron-Bridge.
BRIDGE_CONFIG = "bridge_config.yaml"

_POLL_S = 0.01
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


class Child:
    """A child of this process that was forked, known by ``pid``, with a part of Popen's methods."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; subprocess.TimeoutExpired after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout or 0.0)
            time.sleep(_POLL_S)
        return code

    def kill(self) -> None:
        """Send SIGKILL; nothing to one that has ended, because another process may have its number by now."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def prctl(option: int, value: int) -> None:
    """Change a property of this process by the system call of Linux. OSError if the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")
