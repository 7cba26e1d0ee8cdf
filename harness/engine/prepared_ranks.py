"""Forks ranks before torchrun starts, from a process with one thread and all imports.

torchrun still starts, watches and ends the ranks. In place of `Popen` it gets a process that waits for its order.
"""

import inspect
import json
import os
import runpy
import signal
import sys
from contextlib import suppress
from types import TracebackType

from harness.engine.process import UnforkableError, die_with_parent, end_now, redirect, run_and_end, why_not_forkable
from harness.records.launch import Child

# Arguments that torch may pass when it asks for the process of a rank.
KNOWN = frozenset({"entrypoint", "args", "env", "stdout", "stderr", "local_rank_id", "numa_options"})


def why_not_to_be_handed_over() -> str:
    """Return why this torch cannot take prepared ranks; empty if it can (torch 2.4 to 2.13)."""
    import torch
    from torch.distributed.elastic.multiprocessing import api

    asks = getattr(api, "get_subprocess_handler", None)
    if asks is not None and set(inspect.signature(asks).parameters) <= KNOWN:
        return ""
    return f"torchrun of torch {torch.__version__} starts ranks in a way that mbr-perf does not know"


class PreparedRanks:
    """Gives torchrun its ranks inside the block. UnforkableError if this process must not fork."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._waiting: list[tuple[Child, int]] = []

    def __enter__(self) -> "PreparedRanks":
        from torch.distributed.elastic.multiprocessing import api

        reason = why_not_forkable()
        if reason:
            raise UnforkableError(reason)
        for _ in range(self._number):
            self._waiting.append(_fork_rank([order for _, order in self._waiting]))
        self._torch_api, self._torch_handler = api, api.get_subprocess_handler
        api.get_subprocess_handler = self.start
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._torch_api.get_subprocess_handler = self._torch_handler
        for rank, order in self._waiting:
            os.close(order)
            rank.wait()

    def start(self, entrypoint, args, env, stdout, stderr, local_rank_id, numa_options=None) -> "RankHandler":
        """Give a waiting rank its order; the signature is that of torch's `get_subprocess_handler`."""
        if entrypoint != sys.executable or numa_options is not None:
            raise ValueError(f"a forked rank cannot run {entrypoint} with NUMA options {numa_options}")
        rank, order = self._waiting.pop(0)
        words = {
            "arguments": [str(argument) for argument in args],
            "environment": {**os.environ, **env},
            "outputs": {1: stdout or None, 2: stderr or None},
        }
        with os.fdopen(order, "w") as pipe:
            json.dump(words, pipe)
        return RankHandler(rank, local_rank_id)


class RankHandler:
    """The handle of a rank for torchrun: ``proc``, and how to end it."""

    def __init__(self, proc: Child, local_rank_id: int) -> None:
        self.proc, self.local_rank_id = proc, local_rank_id

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Signal the whole process group of the rank."""
        with suppress(ProcessLookupError):
            os.killpg(self.proc.pid, death_sig or signal.SIGTERM)


def _fork_rank(orders: list[int]) -> tuple[Child, int]:
    """Fork a waiting rank; return it and the pipe for its order. ``orders``: the pipes of ranks forked before it."""
    read, write = os.pipe()
    report, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        for descriptor in (write, report, *orders):
            os.close(descriptor)
        run_and_end(lambda: _be_rank(read, ready))
    os.close(read)
    os.close(ready)
    with os.fdopen(report, "rb") as waiting:
        waiting.read()  # until it leads its process group, which signals are sent to
    return Child(pid), write


def _be_rank(order: int, ready: int) -> None:
    os.setsid()
    die_with_parent()
    os.close(ready)
    with os.fdopen(order) as pipe:
        text = pipe.read()
    if not text:
        end_now(0)  # torchrun ended without starting it
    import numpy as np
    import torch

    words = json.loads(text)
    np.random.seed()  # the imports took seeds from the system; Python's own `random` draws anew after every fork
    torch.default_generator.seed()
    os.environ.clear()
    os.environ.update(words["environment"])
    for descriptor, path in words["outputs"].items():
        if path is not None:
            redirect(path, int(descriptor), flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    _run_python(words["arguments"])


def _run_python(arguments: list[str]) -> None:
    """Run ``[-u] -m MODULE ...`` or ``[-u] SCRIPT ...`` as the interpreter would."""
    words = [argument for argument in arguments[:1] if argument != "-u"] + arguments[1:]
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
