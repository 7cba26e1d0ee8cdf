"""Plays a recorded run, and chooses the launcher."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import BadRequestError
from harness.experiment.experiment import ExperimentSpec
from harness.launch.plan import LaunchPlan, LaunchRequest, build_plan
from harness.records.collect import LaunchOutcome
from harness.records.rank import RankRecord
from harness.records.strict_json import read_document

if TYPE_CHECKING:
    from harness.launch.supervise import OnProgress
    from harness.launch.warm import WarmParents

RECORDED = ("rank_*.json", "rank_*.progress.jsonl", "nvml_*.json", "launch*.json", "outcome*.json")


@dataclass(frozen=True)
class ReplayPlan:
    """Which recorded files become those of ``run_dir``."""

    run_dir: Path
    source: Path
    files: tuple[str, ...]

    def render(self) -> str:
        """List the recorded files below the two folders, for ``--dryrun``."""
        return "\n".join([f"# run folder {self.run_dir}", f"# replay of {self.source}", *self.files]) + "\n"


def build_replay(request: LaunchRequest) -> ReplayPlan:
    """Return the plan; BadRequestError when there is no recorded run, or it is one of another experiment."""
    if request.settings.replay_from is None:
        raise BadRequestError("replay needs a recorded run", remedy="pass --from RUN_FOLDER")
    source, run_dir = request.settings.replay_from.absolute(), request.run_dir.absolute()
    if source.resolve() == run_dir.resolve():
        raise BadRequestError(f"{source} cannot be replayed into itself", remedy="choose another run folder")
    if not (source / "spec.json").is_file():
        raise BadRequestError(f"{source} is not a run folder: it has no spec.json", remedy="pass --from RUN_FOLDER")
    recorded = read_document(source / "spec.json", ExperimentSpec)
    if recorded.fingerprint != request.spec.fingerprint:
        raise BadRequestError(
            f"{source} is a run of another experiment: it has {recorded.slug} ({recorded.fingerprint}), "
            f"the request is for {request.spec.slug} ({request.spec.fingerprint})",
            remedy=f"use the settings in {source / 'spec.json'}",
        )
    files = sorted({path.name for pattern in RECORDED for path in (source / "ranks").glob(pattern)})
    if not any(name.startswith("rank_") for name in files):  # killed ranks leave heartbeats and no record
        raise BadRequestError(
            f"{source}/ranks has no records or heartbeats of ranks", remedy="replay a folder of results/runs"
        )
    return ReplayPlan(run_dir, source, tuple(files))


def replay(plan: ReplayPlan) -> LaunchOutcome:
    """Copy the recorded files and say how that launch ended; a record of the outcome counts before all else."""
    ranks = plan.run_dir / "ranks"
    for folder in (ranks, plan.run_dir / "logs"):
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    for name in plan.files:
        shutil.copyfile(plan.source / "ranks" / name, ranks / name)
    if (ranks / "outcome.json").exists():
        return read_document(ranks / "outcome.json", LaunchOutcome)
    # Without an outcome, a run succeeded only if all ranks that left heartbeats finished. Else the ranks say why not.
    finished = [read_document(path, RankRecord).finished for path in ranks.glob("rank_*.json")]
    is_whole = all(finished) and len(finished) >= len([*ranks.glob("rank_*.progress.jsonl")])
    return LaunchOutcome(status="ok" if is_whole else "failed")


Plan = LaunchPlan | ReplayPlan

LAUNCHERS: dict[str, Callable[[LaunchRequest], Plan]] = {"torchrun": build_plan, "replay": build_replay}


def execute(plan: Plan, *, on_progress: "OnProgress", parents: "WarmParents | None" = None) -> LaunchOutcome:
    """Run the plan to its end. BadRequestError: a damaged recorded run. RunFailedError: it could not be started."""
    match plan:
        case LaunchPlan():
            from harness.launch.supervise import supervise  # 10 ms that no plan needs

            return supervise(plan, on_progress, parents)
        case ReplayPlan():
            return replay(plan)
