"""Whether a child made by fork is like a fresh process with the same imports."""

import os
from pathlib import Path

from harness.engine.forked_process import end_now

TASKS = Path("/proc/self/task")


class UnforkableError(RuntimeError):
    """A process that was to be forked may not be; nothing has been started."""


def why_not_forkable() -> str:
    """Why a child would not be like a fresh process; empty where it would. torch must be imported."""
    import torch

    others = [task for task in TASKS.iterdir() if int(task.name) != os.getpid()]
    if others:
        names = ", ".join(sorted((task / "comm").read_text().strip() for task in others))
        return f"{len(others)} other threads run in process {os.getpid()}, which was to be forked ({names})"
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
