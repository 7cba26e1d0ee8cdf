"""The history of torch's CUDA allocator: of one step beside the measured ones, or of everything until memory runs out."""

import inspect
from collections.abc import Callable
from pathlib import Path

import torch
from torch.autograd.profiler import record_function

MAX_ENTRIES = 100_000  # the newest; each takes some KB of the host's memory


def record_step(run_step: Callable[[Callable[[str], None]], object], path: Path, memory=torch.cuda.memory) -> None:
    """Run one step with its history recorded and write it to ``path``; its phases become the snapshot's annotations.

    ``run_step`` is given a function to tell of each new phase. Weights and optimizer states are in the snapshot without
    their stacks: they were made before. All ranks must call it, for it is a step of all.
    """
    _start(memory)
    phases = _Phases()
    run_step(phases.enter)
    phases.leave()
    _write(path, memory)
    memory._record_memory_history(enabled=None)


def record_until_out_of_memory(path: Path, memory=torch.cuda.memory, attach: Callable | None = None) -> None:
    """Record from now on; each time a request fails, ``path`` is written anew, before the failure unwinds anything.

    ``attach`` takes the function that torch calls then; torch's own unless given.
    """
    _start(memory)

    def out_of_memory(_device, _request, _device_total, _device_free) -> None:
        _write(path, memory)

    (attach or torch._C._cuda_attach_out_of_memory_observer)(out_of_memory)


def _start(memory) -> None:
    """Python stacks only: megatron-core's modules are in them, and C++ frames are many and slow to be named."""
    asked = {"max_entries": MAX_ENTRIES, "stacks": "python"}
    if _records_annotations_when_asked(memory):
        asked["global_record_annotations"] = True
    memory._record_memory_history(**asked)


def _records_annotations_when_asked(memory) -> bool:
    """Older releases of torch do so unasked, and refuse to be asked."""
    return "global_record_annotations" in inspect.signature(memory._record_memory_history_impl).parameters


def _write(path: Path, memory) -> None:
    """Whole or not at all."""
    temporary = path.with_suffix(".pickle.tmp")
    memory._dump_snapshot(str(temporary))
    temporary.replace(path)


class _Phases:
    """One annotation at a time: each phase ends where the next begins."""

    def __init__(self) -> None:
        self._open = None

    def enter(self, phase: str) -> None:
        """The phase from now on."""
        self.leave()
        self._open = record_function(phase)
        self._open.__enter__()

    def leave(self) -> None:
        """No phase from now on."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None
