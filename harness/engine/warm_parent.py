"""A process that imports once what agents and ranks need, and forks an agent per launch.

The harness starts ``python -m harness.engine.warm_parent --channel FD --device cpu|cuda`` with the environment of the
ranks, because libraries read it while they load. A process with a GPU in use or with threads refuses to fork.
"""

import argparse
import contextlib
import gc
import os
import socket
import sys
import time
from importlib import import_module, metadata
from typing import NoReturn

from pydantic import ValidationError

from harness.engine.prepared_ranks import PreparedRanks, why_not_to_be_handed_over
from harness.engine.process import (
    die_with_parent,
    importing_before_forks,
    redirect,
    run_and_end,
    why_no_cuda_in_children,
    why_not_forkable,
)
from harness.records.collect import WarmAnswer, WarmRequest
from harness.units import parse_version


def main() -> NoReturn:
    """Serve until the harness closes the channel, then end without torch's slow clean-up."""
    parser = argparse.ArgumentParser(prog="harness.engine.warm_parent")
    parser.add_argument("--channel", type=int, required=True, help="descriptor of a socket")
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    asked = parser.parse_args()
    run_and_end(lambda: be_parent(asked.channel, asked.device))


def be_parent(descriptor: int, device: str) -> None:
    """Import, report whether the process can still be forked, and serve."""
    die_with_parent()
    # the harness closes the channel early when it stops waiting
    with socket.socket(fileno=descriptor) as channel, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        changed = import_everything(device)
        unusable = why_not_to_be_handed_over() or why_not_forkable()
        if device == "cuda":  # imports of megatron-core 0.20 ask CUDA for its devices; ranks on the processor never do
            unusable = unusable or why_no_cuda_in_children()
        _answer(channel, WarmAnswer(kind="refused", reason=unusable) if unusable else WarmAnswer(kind="ready"))
        if not unusable:
            serve(channel, changed)


# Modules that functions of megatron-core import at their first call, and the release since when. A test compares: a
# module that a rank still imports itself costs time at every launch.
_LATE = {
    "megatron.core.ssm.gated_delta_net": "0.16",
    "megatron.core.models.mimo": "0.19",
    "megatron.core.models.gpt.experimental_attention_variant_module_specs": "0.20",
}


def import_everything(device: str) -> dict[str, str]:
    """Import, and return the variables that the imports set."""
    at_first = dict(os.environ)
    with importing_before_forks():
        if device == "cpu":
            from harness.engine.cpu_backend import before_megatron

            before_megatron()
        for module in ("torch.distributed.run", "harness.engine.agent", "harness.engine.rank_run"):
            import_module(module)
        installed = parse_version(metadata.version("megatron-core"))
        for module, since in _LATE.items():
            if parse_version(since) <= installed:
                import_module(module)
        gc.collect()  # otherwise a measured step of a forked rank pays for the collection
    return {name: value for name, value in os.environ.items() if at_first.get(name) != value}


def serve(channel: socket.socket, changed: dict[str, str]) -> None:
    """Fork an agent for every request."""
    with channel.makefile("rb") as lines:
        for line in lines:
            try:
                request = WarmRequest.model_validate_json(line)
                reason = why_not_forkable()
                pid, go = (None, None) if reason else fork_agent(request, channel, changed)
            except (ValidationError, OSError) as error:
                reason, pid, go = f"the warm parent could not fork: {error}", None, None
            answer = WarmAnswer(kind="refused", reason=reason) if pid is None else WarmAnswer(kind="started", pid=pid)
            _answer(channel, answer)
            if go is not None:  # the agent waits for the harness's next message, and ends without one
                with contextlib.suppress(BrokenPipeError), os.fdopen(go, "wb") as pipe:
                    pipe.write(lines.readline())


def _answer(channel: socket.socket, answer: WarmAnswer) -> None:
    channel.sendall(answer.model_dump_json().encode() + b"\n")


def fork_agent(request: WarmRequest, channel: socket.socket, changed: dict[str, str]) -> tuple[int, int]:
    """Return the agent's pid, and the pipe on which it waits before it begins. OSError without memory or processes.

    A child forks the agent and ends at once, so that the harness, the next subreaper, is the agent's parent.
    """
    read, write = os.pipe()
    waits, go = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(read)
        os.close(go)  # only the parent keeps this end, so the agent notices its death
        run_and_end(lambda: _fork_again(request, channel, changed, write, waits))
    os.close(write)
    os.close(waits)
    with os.fdopen(read) as pipe:
        pid_text = pipe.read()
    os.waitpid(between, 0)
    if not pid_text:
        os.close(go)
        raise OSError("the forked process ended before it started an agent; see logs/launcher.log")
    return int(pid_text), go


def _fork_again(request: WarmRequest, channel: socket.socket, changed: dict[str, str], write: int, waits: int) -> None:
    between = os.getpid()
    agent = os.fork()
    if agent == 0:
        os.close(write)
        os.close(channel.detach())
        run_and_end(lambda: _be_agent(request, changed, between, waits))
    os.write(write, str(agent).encode())


def _be_agent(request: WarmRequest, changed: dict[str, str], between: int, waits: int) -> int:
    from harness.engine.agent import main as agent

    os.setsid()
    redirect(os.devnull, 0, flags=os.O_RDONLY)
    redirect(request.log, 1, 2)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment | changed)
    sys.argv = ["harness.engine.agent", *request.arguments]
    while os.getppid() == between:
        time.sleep(0.001)
    with os.fdopen(waits, "rb") as pipe:
        if not pipe.read():  # the harness stopped waiting and may have started another agent for this run
            return 0
    return agent(request.arguments, PreparedRanks(request.num_ranks))


if __name__ == "__main__":
    main()
