"""How processes of a plan are started: afresh, or the agent from a warm parent."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from harness.launch.crew import Agent
from harness.launch.interruption import Interruption
from harness.launch.plan import LaunchPlan
from harness.launch.umask import OF_PROCESSES, open_log
from harness.launch.warm import WarmParents
from harness.launch.warm_process import Refused, environment


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
