"""What a started process owes to the one that started it: it dies with it, and it shows its stacks when asked."""

import ctypes
import faulthandler
import os
import signal
import sys

from harness.records.launch import PARENT_PID_VARIABLE

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(with_signal: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel for ``with_signal`` when the parent dies (Linux `prctl(2)`); end at once if it died already.

    The parent is known by number from the environment variable ``MBR_PERF_PARENT_PID``; without it, as under plain
    torchrun, only a later death is noticed. Does nothing on systems without prctl. The kernel means the thread that
    started this process: a parent must not start it from a short-lived one.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(with_signal), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_PDEATHSIG): {os.strerror(error)}")
    expected = os.environ.get(PARENT_PID_VARIABLE)
    if expected is not None and os.getppid() != int(expected):
        os.kill(os.getpid(), with_signal)


def be_parent_of_children() -> None:
    """Children started from now on check that this process is still their parent."""
    os.environ[PARENT_PID_VARIABLE] = str(os.getpid())


def dump_stacks_on_signal() -> None:
    """SIGUSR1 writes the Python stacks of all threads to file descriptor 2 and goes on; call after redirecting it."""
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True, chain=False)
