"""Whether a child made by fork is like a fresh process with the same imports."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.engine.forked_process import end_now
from harness.units import counted

TASKS = Path("/proc/self/task")
# With more than one, numpy's OpenBLAS starts its threads as it loads; asking CUDA itself whether there is a GPU makes CUDA
# unusable in children; torch 2.6 starts its compilers, and a thread that listens to them.
_WHILE_IMPORTING = {"OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "TORCH_WARM_POOL": "0"}


class UnforkableError(RuntimeError):
    """A process that was to be forked may not be; nothing has been started."""


@contextmanager
def importing_before_forks() -> Iterator[None]:
    """For imports of torch whose children shall be forked: those variables, where unset, that keep it forkable."""
    added = {name: value for name, value in _WHILE_IMPORTING.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def why_not_forkable() -> str:
    """Why a child would not be like a fresh process; empty where it would. torch must be imported."""
    import torch

    others = [task for task in TASKS.iterdir() if int(task.name) != os.getpid()]
    if others:
        names = ", ".join(sorted((task / "comm").read_text().strip() for task in others))
        return f"{counted(len(others), 'other thread')} {'runs' if len(others) == 1 else 'run'} in process {os.getpid()}, which was to be forked ({names})"
    if torch.cuda.is_initialized():
        return f"CUDA is initialised in process {os.getpid()}, which was to be forked"
    return ""


def why_no_cuda_in_children() -> str:
    """As above where CUDA itself was asked for something, which torch does not tell before a child tries."""
    import torch

    child = os.fork()
    if child == 0:
        end_now(int(torch.cuda._is_in_bad_fork()))
    _, status = os.waitpid(child, 0)
    return "an import has used CUDA, which no child could use then" if status else ""
