"""Warm parents: processes that import torch and megatron-core once, for all launches with the same environment."""

import sys
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType

from harness.launch.plan import LaunchPlan
from harness.launch.processes import adopt_orphans
from harness.launch.warm_process import Refused, WarmAgent, WarmProcess, set_by_torchrun

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
