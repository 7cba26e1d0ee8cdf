"""Warm parents that fork ranks with their imports done, and when a run starts from one."""

import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from harness.launch.crew import Agent, Interruption
from harness.launch.plan import LaunchPlan
from harness.launch.processes import adopt_orphans
from harness.launch.warm_process import Refused, WarmAgent, WarmProcess, environment, set_by_torchrun
from harness.records.launch import OF_PROCESSES, open_log

KEEP = 2  # each holds what the imports take, some 350 MB

Key = tuple[str, bool, tuple[tuple[str, str], ...]]


class WarmParents:
    """Starts agents from parents that are kept over several launches; leaving the block ends the parents.

    Libraries read variables while they load (glibc, OpenMP, torch's allocator, transformer-engine), so every distinct
    environment has a parent of its own; of those the ``keep`` last used stay. To be used from one thread that outlives
    all launches: the kernel ends a process with the thread that started it.
    """

    def __init__(self, keep: int = KEEP) -> None:
        self._keep = keep
        self._parents: OrderedDict[Key, WarmProcess] = OrderedDict()
        self._unfit: dict[Key, Refused] = {}

    def __enter__(self) -> "WarmParents":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        while self._parents:
            self._parents.popitem()[1].close()

    def prepare(self, plan: LaunchPlan) -> None:
        """Let the plan's parent import meanwhile; its ``logs`` folder is there. Nothing is waited for."""
        if sys.platform == "linux" and _key(plan) not in self._unfit:
            self._parent(plan)

    def start(self, plan: LaunchPlan, give_up: Callable[[], bool] = lambda: False) -> WarmAgent | Refused:
        """An agent for the plan, or why it must be started afresh. ``give_up`` is asked now and then, and ends the wait."""
        key = _key(plan)
        if sys.platform != "linux":
            return Refused("warm parents are for Linux", for_good=True)
        if key in self._unfit:
            return self._unfit[key]
        adopt_orphans()  # an agent becomes this process's own child
        answer = self._parent(plan).start(plan, give_up)
        if isinstance(answer, Refused):
            self._parents.pop(key).close()
            if answer.for_good:
                self._unfit[key] = answer
        return answer

    def _parent(self, plan: LaunchPlan) -> WarmProcess:
        key = _key(plan)
        if key in self._parents and not self._parents[key].is_alive:
            self._parents.pop(key).close()
        if key not in self._parents:
            while len(self._parents) >= self._keep:
                self._parents.popitem(last=False)[1].close()
            self._parents[key] = WarmProcess(plan)
        self._parents.move_to_end(key)
        return self._parents[key]


def _key(plan: LaunchPlan) -> Key:
    """What a parent cannot change once it has imported."""
    given = {variable.name: variable.value for variable in plan.env} | set_by_torchrun(plan)
    return plan.python, plan.without_gpu, tuple(sorted(given.items()))


@dataclass(frozen=True)
class Started:
    """The agent, and how it was started."""

    agent: Agent
    warm: bool = False
    notes: tuple[str, ...] = ()


def start_process(plan: LaunchPlan, argv: tuple[str, ...], log: Path) -> subprocess.Popen[bytes]:
    """In a session of its own, so that Ctrl-C in the terminal reaches the harness only, which then stops it in order."""
    with open_log(log) as output:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(plan),
            start_new_session=True,
            umask=OF_PROCESSES,
        )


def start_agent(plan: LaunchPlan, caught: Interruption, parents: WarmParents | None) -> Started | None:
    """From a warm parent if there are any, else afresh; None when the user interrupted the wait for a warm parent."""
    if parents is None:
        return Started(start_process(plan, plan.argv, plan.launcher_log))
    answer = parents.start(plan, lambda: caught.signal is not None)
    if not isinstance(answer, Refused):
        return Started(answer, warm=True, notes=("ranks were forked from a warm parent: no import is in their times",))
    if caught.signal is not None:
        return None
    return Started(
        start_process(plan, plan.argv, plan.launcher_log),
        notes=(started_afresh(answer.reason),),
    )


def started_afresh(reason: str) -> str:
    """The note of a run that was to be forked from a warm parent."""
    return f"started from a fresh torchrun instead of a warm parent: {reason}"
