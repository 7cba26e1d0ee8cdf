"""How processes that mbr-perf starts or forks end, and how they follow their parent."""

import ctypes
import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from harness.records.launch import PARENT_PID_VARIABLE, prctl

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(with_signal: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel for ``with_signal`` when the parent dies (Linux `prctl(2)`); end at once if it died already.

    ``MBR_PERF_PARENT_PID`` names the parent; without it only a later death counts. For the kernel the parent is a
    thread: do not start this process from a short-lived one.
    """
    if sys.platform != "linux":
        return
    prctl(PR_SET_PDEATHSIG, int(with_signal))
    expected = os.environ.get(PARENT_PID_VARIABLE)
    if expected is not None and os.getppid() != int(expected):
        os.kill(os.getpid(), with_signal)


def be_parent_of_children() -> None:
    """Let later children check that this process is still their parent."""
    os.environ[PARENT_PID_VARIABLE] = str(os.getpid())


def redirect(path: str | Path, *descriptors: int, flags: int = os.O_WRONLY | os.O_CREAT | os.O_APPEND) -> None:
    """Connect descriptors of this process with a file, also for C libraries."""
    opened = os.open(path, flags, 0o640)
    for descriptor in descriptors:
        os.dup2(opened, descriptor)
    os.close(opened)


def dump_stacks_on_signal() -> None:
    """Let SIGUSR1 write the Python stacks of all threads to descriptor 2. Call it after redirecting that."""
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True, chain=False)


def run_and_end(program: Callable[[], object]) -> NoReturn:
    """Run ``program`` as the whole of this process, and end with the exit code that an interpreter would give it.

    Exit handlers belong to the parent of a fork; the clean-up of Python objects takes a second with torch loaded.
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


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Switch Python's garbage collector off inside the block, because it slows imports; nothing is collected after."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def end_now(code: int) -> NoReturn:
    """End at once, after writing the buffers of Python and C."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(code)


def _exit_code(value: object) -> int:
    """Return the exit code that Python gives to an argument of ``sys.exit``."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    print(value, file=sys.stderr)  # noqa: T201
    return 1


TASKS = Path("/proc/self/task")
# More than one: numpy's OpenBLAS starts threads when it loads. A direct question to CUDA makes CUDA unusable in
# children. torch 2.6 starts its compilers and a thread that listens to them.
_WHILE_IMPORTING = {"OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "TORCH_WARM_POOL": "0"}


class UnforkableError(RuntimeError):
    """The process must not be forked. Nothing was started."""


@contextmanager
def importing_before_forks() -> Iterator[None]:
    """Prepare imports of torch in a process that will fork: set variables that keep it forkable."""
    added = {name: value for name, value in _WHILE_IMPORTING.items() if name not in os.environ}
    os.environ.update(added)
    try:
        with garbage_collection_paused():
            yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def why_not_forkable() -> str:
    """Return why a fork would differ from a fresh process; empty if it would not. Import torch first."""
    import torch

    others = [task for task in TASKS.iterdir() if int(task.name) != os.getpid()]
    if others:
        names = ", ".join(sorted((task / "comm").read_text().strip() for task in others))
        return f"other threads run in process {os.getpid()}, so it cannot be forked: {names}"
    if torch.cuda.is_initialized():
        return f"CUDA is initialised in process {os.getpid()}, so it cannot be forked"
    return ""


def why_no_cuda_in_children() -> str:
    """Return the reason if an import called CUDA directly. torch notices this only in the child."""
    import torch

    child = os.fork()
    if child == 0:
        end_now(int(torch.cuda._is_in_bad_fork()))
    _, status = os.waitpid(child, 0)
    return "an import has used CUDA, so forked children could not use it" if status else ""
