"""A tracer that stays: ``python -m harness.engine.warm_trace IMPLEMENTATION`` reads folders from stdin, one a line.

It imports torch and megatron-core once and forks for each request; `trace.py` decides what a trace is.
"""

import gc
import os
import select
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from harness.engine.process import (
    UnforkableError,
    be_parent_of_children,
    die_with_parent,
    importing_before_forks,
    redirect,
    run_and_end,
    why_not_forkable,
)
from harness.engine.trace import prepare, write_chunks
from harness.records.launch import Child
from harness.records.store import write_atomically
from harness.records.trace import TraceRequest

_STDIN, _STDERR, _MOST_BYTES = 0, 2, 65536
_POLL_S = 0.01


def main() -> int:
    """Serve requests until stdin ends. UnforkableError if an import or a trace started a thread."""
    with importing_before_forks():
        stand_in = prepare(transformer_engine=sys.argv[1] == "transformer_engine")
        import_module("harness.engine.tracing.run")
    gc.collect()
    gc.freeze()
    be_parent_of_children()
    _serve(stand_in)
    return 0


def _serve(stand_in: str | None) -> None:
    """Fork for every folder that stdin names, and leave the exit code of each fork in its folder.

    After the first good fork, trace a case here too: later forks then start with all that loads at its first use.
    """
    forks: dict[Path, Child] = {}
    is_warm = False
    while True:
        if select.select([_STDIN], [], [], _POLL_S if forks else None)[0]:
            names = os.read(_STDIN, _MOST_BYTES).decode().splitlines()
            if not names:
                return
            forks |= {Path(name): _forked(Path(name), stand_in) for name in names}
        for folder, fork in [*forks.items()]:
            if (code := fork.poll()) is not None:
                del forks[folder]
                with suppress(OSError):  # nobody waits for it any more
                    done = None if is_warm or code else _request(folder)
                    write_atomically(folder / "exit", str(code))
                    if done:
                        is_warm = True
                        _warm_up(done)


def _warm_up(request: TraceRequest) -> None:
    """Trace the first case of a request and forget it."""
    import torch.distributed as dist
    from megatron.core import parallel_state

    from harness.engine.tracing.run import trace_all

    trace_all(request.model_copy(update={"cases": request.cases[:1]}), lambda: None)
    if dist.is_initialized():
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def _forked(folder: Path, stand_in: str | None) -> Child:
    if problem := why_not_forkable():
        raise UnforkableError(problem)
    pid = os.fork()
    if pid == 0:
        run_and_end(lambda: _answer(folder, stand_in))
    return Child(pid)


def _answer(folder: Path, stand_in: str | None) -> None:
    die_with_parent()
    redirect(folder / "stderr", _STDERR)
    write_chunks(_request(folder), folder / "answer.json", stand_in, time.perf_counter())


def _request(folder: Path) -> TraceRequest:
    return TraceRequest.model_validate_json((folder / "request.json").read_text())


if __name__ == "__main__":
    sys.exit(main())
