"""The processes of a launch, and their end by a signal."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from harness.launch.processes import Process, adopted, bury, catches, descendants, identify, is_alive, send
from harness.records.launch import PARENT_PID_VARIABLE, Child

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """``signal``: the first signal received, or None. ``insisted``: a second signal came, so stop waiting."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.insisted = False

    def receive(self, number: int, _frame: FrameType | None = None) -> None:
        """Handle a signal."""
        self.insisted = self.signal is not None
        self.signal = self.signal or signal.Signals(number)


@contextmanager
def interruption() -> Iterator[Interruption]:
    """Catch SIGINT, SIGTERM and SIGHUP inside the block, in the main thread; the former handlers come back."""
    caught = Interruption()
    outer = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    if isinstance(outer, Interruption):  # a signal that came just before belongs to this block as well
        caught.signal = outer.signal
    try:
        with _handled(HANDLED, caught):
            yield caught
    finally:
        if isinstance(outer, Interruption):  # one that came too late for this block is not lost
            outer.signal = outer.signal or caught.signal


@contextmanager
def _handled(numbers: Iterable[signal.Signals], by: Interruption) -> Iterator[None]:
    is_main = threading.current_thread() is threading.main_thread()
    former = {number: signal.signal(number, by.receive) for number in numbers if is_main}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextmanager
def signals_raised(error: Callable[[int], BaseException]) -> Iterator[None]:
    """Raise ``error(number)`` inside the block on the first SIGTERM or SIGHUP; a further one is ignored."""

    class Raising(Interruption):
        def receive(self, number: int, _frame: FrameType | None = None) -> None:
            super().receive(number)
            if not self.insisted:  # else the clean-up after the first one would end
                raise error(number)

    with _handled((signal.SIGTERM, signal.SIGHUP), Raising()):
        yield


POLL_S = 0.05
STACK_DUMP_S = 1.0  # time for the signal to arrive, and to write the stacks
TERMINATE_S = 10.0  # above TORCH_ELASTIC_SHUTDOWN_TIMEOUT, so that the agent can still write what it saw
KILLED_S = 5.0


Agent = subprocess.Popen[bytes] | Child
"""Started afresh, or forked by a warm parent: then a child of this process by adoption."""


class Crew:
    """The agent and its descendants. ``num_killed``: descendants that had to be killed after the agent ended."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.num_killed = 0
        self._agent_process = identify(agent.pid)
        self._known: set[Process] = set()
        self._dead: set[Process] = set()

    def look(self) -> None:
        """Find new descendants. Descendants of a dead agent are children of this process, and carry its number."""
        for process in [p for p in self._known if not is_alive(p)]:
            self._known.remove(process)
            self._dead.add(process)
        if self.agent.poll() is not None:
            self._known.update(adopted(f"{PARENT_PID_VARIABLE}={self.agent.pid}"))
        self._known.update(descendants(self.agent.pid, *(process.pid for process in self._known)))

    def show_stacks(self) -> None:
        """Make every descendant with a handler write its stacks to its log. One in state D does not get the signal."""
        self.look()
        asked = [p for p in self._known if catches(p, signal.SIGUSR1) and send(p, signal.SIGUSR1)]
        if asked:
            time.sleep(STACK_DUMP_S)

    def terminate(self, interruption: Interruption) -> None:
        """Send SIGTERM to the agent, which ends its ranks; send SIGKILL to all after a timeout or a second signal."""
        self.look()
        if self._agent_process is not None:
            send(self._agent_process, signal.SIGTERM)
        deadline = time.monotonic() + TERMINATE_S
        while self.agent.poll() is None and time.monotonic() < deadline and not interruption.insisted:
            time.sleep(POLL_S)
        self.kill()

    def kill(self) -> None:
        """Kill the remaining processes and wait for them; does nothing after an orderly end."""
        self.look()
        if self.agent.poll() is None:
            self.agent.kill()
        self.agent.wait()
        self.look()
        deadline = time.monotonic() + KILLED_S
        counted: set[Process] = set()
        while time.monotonic() < deadline:
            left = [process for process in self._known if process.pid != os.getpid() and is_alive(process)]
            if not left:
                break
            counted.update(process for process in left if send(process, signal.SIGKILL))
            time.sleep(POLL_S)
        self.num_killed += len(counted)
        bury(self._known | self._dead)
