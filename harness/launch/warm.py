"""Warm parents that fork ranks with their imports done, and when a run starts from one."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType

from pydantic import ValidationError

from harness.launch.crew import Agent, Interruption
from harness.launch.plan import LaunchPlan
from harness.launch.processes import adopt_orphans
from harness.records.collect import WarmAnswer, WarmRequest
from harness.records.launch import OF_PROCESSES, PARENT_PID_VARIABLE, Child, ended_how, open_log

READY_S = 180.0  # on a cold node torch and megatron load from a shared file system
FORK_S = 20.0
CLOSE_S = 2.0
LISTEN_S = 0.1


class RefusedError(Exception):
    """Why there is no agent."""


class WarmProcess:
    """A running warm parent with the environment of one plan. It imports while nobody waits for it yet."""

    def __init__(self, plan: LaunchPlan) -> None:
        self._answers = b""
        self._is_ready = False
        self._channel, theirs = socket.socketpair()
        with theirs:
            device = ("--device", "cpu" if plan.without_gpu else "cuda")
            argv = (plan.python, "-m", "harness.engine.warm_parent", "--channel", str(theirs.fileno()), *device)
            self.process = start_process(plan, argv, plan.launcher_log, set_by_torchrun(plan), (theirs.fileno(),))

    def start(self, plan: LaunchPlan, give_up: Callable[[], bool]) -> Child:
        """Return an agent for the plan. ``give_up`` is asked now and then, and ends the wait for the imports."""
        if not self._is_ready:
            ready = self._listen(READY_S, give_up)
            if ready.kind == "refused":
                raise RefusedError(ready.reason)
            self._is_ready = True
        request = WarmRequest(
            arguments=plan.agent_arguments,
            num_ranks=plan.num_local_ranks,
            environment=environment(plan),
            log=str(plan.launcher_log),
            folder=str(Path.cwd()),
        )
        try:
            self._channel.sendall(request.model_dump_json().encode() + b"\n")
        except OSError:
            raise self._gone() from None
        answer = self._listen(FORK_S, lambda: False)  # the requested agent may run by now, and must be ended
        if answer.pid is None:
            raise RefusedError(answer.reason)
        agent = Child(answer.pid)
        try:
            self._channel.sendall(b"go\n")  # an agent whose announcement came too late gets no order, and ends
        except OSError:
            agent.kill()
            agent.wait()
            raise self._gone() from None
        return agent

    def close(self) -> None:
        """End the warm parent. Agents that it forked continue."""
        self._channel.close()
        try:
            self.process.wait(CLOSE_S if self._is_ready else 0.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _listen(self, patience_s: float, give_up: Callable[[], bool]) -> WarmAnswer:
        deadline = time.monotonic() + patience_s
        self._channel.settimeout(LISTEN_S)
        while b"\n" not in self._answers:
            if give_up():
                raise RefusedError("interrupted while the warm parent started")
            if time.monotonic() > deadline:
                raise RefusedError(f"the warm parent did not answer within {patience_s:g} s")
            try:
                received = self._channel.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError:
                received = b""
            if not received:
                raise self._gone()
            self._answers += received
        line, _, self._answers = self._answers.partition(b"\n")
        try:
            return WarmAnswer.model_validate_json(line)
        except ValidationError as error:
            raise RefusedError(f"the warm parent's answer cannot be read: {error.errors()[0]['msg']}") from error

    def _gone(self) -> RefusedError:
        try:
            code = self.process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            return RefusedError("the warm parent closed its channel")
        return RefusedError(f"the warm parent {ended_how(code)}; see logs/launcher.log of its first run")


def environment(plan: LaunchPlan) -> dict[str, str]:
    """Add this process's id to the plan's variables, so that agents end with it."""
    return plan.variables | {PARENT_PID_VARIABLE: str(os.getpid())}


def set_by_torchrun(plan: LaunchPlan) -> dict[str, str]:
    """Return the variables of torchrun that libraries read while they load, needed before the imports."""
    return {"OMP_NUM_THREADS": "1"} if plan.num_local_ranks > 1 and "OMP_NUM_THREADS" not in plan.variables else {}


KEEP = 2  # each holds the imported modules, about 350 MB


class WarmParents:
    """Starts agents from kept parents, one per environment, as libraries read variables when they load. One thread."""

    def __init__(self) -> None:
        self._parents: dict[object, WarmProcess] = {}  # the last used at the end
        self._unfit: dict[object, RefusedError] = {}  # a refused environment starts afresh from then on

    def __enter__(self) -> "WarmParents":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        while self._parents:
            self._parents.popitem()[1].close()

    def start(self, plan: LaunchPlan, give_up: Callable[[], bool]) -> Child:
        """Return an agent for the plan. RefusedError if it must start afresh. ``give_up`` ends the wait."""
        key = _key(plan)
        if key in self._unfit:
            raise self._unfit[key]
        adopt_orphans()  # an agent becomes this process's own child
        try:
            return self._parent(plan).start(plan, give_up)
        except RefusedError as error:
            self._parents.pop(key).close()
            self._unfit[key] = error
            raise

    def _parent(self, plan: LaunchPlan) -> WarmProcess:
        parent = self._parents.pop(_key(plan), None)
        if parent is not None and parent.process.poll() is not None:
            parent.close()
            parent = None
        while parent is None and len(self._parents) >= KEEP:
            self._parents.pop(next(iter(self._parents))).close()
        self._parents[_key(plan)] = parent or WarmProcess(plan)
        return self._parents[_key(plan)]


def _key(plan: LaunchPlan) -> object:
    given = plan.variables | set_by_torchrun(plan)
    return plan.python, plan.without_gpu, tuple(sorted(given.items()))


def start_process(
    plan: LaunchPlan,
    argv: tuple[str, ...],
    log: Path,
    more: Mapping[str, str] = MappingProxyType({}),
    pass_fds: tuple[int, ...] = (),
) -> subprocess.Popen[bytes]:
    """Start in a session of its own: Ctrl-C reaches only the harness. ``more``: further variables."""
    with open_log(log) as output:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environment(plan), **more},
            start_new_session=True,
            umask=OF_PROCESSES,
            pass_fds=pass_fds,
        )


def start_agent(
    plan: LaunchPlan, caught: Interruption, parents: WarmParents | None
) -> tuple[Agent, tuple[str, ...]] | None:
    """Start from a warm parent if possible, else afresh, with notes; None if the user interrupted the wait."""
    if parents is None:
        return start_process(plan, plan.argv, plan.launcher_log), ()
    try:
        agent = parents.start(plan, lambda: caught.signal is not None)
    except RefusedError as error:
        if caught.signal is not None:
            return None
        return start_process(plan, plan.argv, plan.launcher_log), (started_afresh(str(error)),)
    return agent, ("ranks were forked from a warm parent, so their times contain no imports",)


def started_afresh(reason: str) -> str:
    """Say in a run's notes why no warm parent started it."""
    return f"started from a fresh torchrun instead of a warm parent: {reason}"
