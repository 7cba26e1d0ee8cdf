"""A child made by fork: how it ends, and a handle on it with the part of `subprocess.Popen` that torchrun uses."""

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NoReturn

POLL_S = 0.01


class ForkedProcess:
    """A child of this process, known by ``pid``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; subprocess.TimeoutExpired after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout or 0.0)
            time.sleep(POLL_S)
        return code


def run_and_end(program: Callable[[], object]) -> NoReturn:
    """Run ``program`` as the whole of this process, and end with the exit code that an interpreter would give it.

    Exit handlers do not run: in a fork they were registered by the imports of a process that lives on, which the clean-up
    is for; torch's take seconds.
    """
    code = 1
    try:
        code = _exit_code(program())
    except SystemExit as end:
        code = _exit_code(end.code)
    finally:
        error = sys.exception()
        if error is not None and not isinstance(error, SystemExit):
            sys.excepthook(type(error), error, error.__traceback__)
        end_now(code)


def end_now(code: int) -> NoReturn:
    """End at once; what Python and C have buffered is written."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(code)


def _exit_code(value: object) -> int:
    """As Python takes the argument of ``sys.exit``."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    print(value, file=sys.stderr)  # noqa: T201
    return 1
