"""Launchers by name: one line each for the plan they make and for what runs it."""

from collections.abc import Callable

from harness.launch.plan import LaunchPlan, build_plan
from harness.launch.replay import ReplayPlan, build_replay, replay
from harness.launch.request import LaunchRequest
from harness.launch.supervise import OnProgress, supervise
from harness.launch.warm import WarmParents
from harness.records.launch import LaunchOutcome

Plan = LaunchPlan | ReplayPlan

LAUNCHERS: dict[str, Callable[[LaunchRequest], Plan]] = {"torchrun": build_plan, "replay": build_replay}


def execute(plan: Plan, *, on_progress: OnProgress, parents: WarmParents | None = None) -> LaunchOutcome:
    """Run the plan to its end. BadRequestError: a damaged recorded run. RunFailedError: it could not be started.

    ``parents``: start it from a process that has imported everything before.
    """
    match plan:
        case LaunchPlan():
            return supervise(plan, on_progress, parents)
        case ReplayPlan():
            return replay(plan)
