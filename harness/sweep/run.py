"""Starts and resumes a sweep, here or inside a Slurm job."""

import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from harness.batch.engine import LocalRuns, TimeLimit, play
from harness.batch.folder import holding
from harness.batch.launches import require_same_software
from harness.batch.nodes import Follower, Meeting, follow
from harness.batch.slurm.node import NodeOfJob
from harness.batch.slurm.task import main
from harness.errors import BadRequestError, ExitCode
from harness.experiment.gpu import GPUS
from harness.judging.saving import elsewhere
from harness.launch.disk import full_disk_told
from harness.launch.environment import this_host
from harness.launch.warm import WarmParents
from harness.records.batches import SWEEP_FOLDERS
from harness.records.job import JobAttempt
from harness.records.store import results_dir
from harness.records.strict_json import read_document
from harness.records.sweep import SweepPlan
from harness.records.sweeps import SWEEP, made_sweep_dir, read_sweep
from harness.run.machine import software_here
from harness.sweep.batch import DueCell, SweepBatch
from harness.sweep.plan import plan_sweep
from harness.sweep.reports import answer
from harness.sweep.request import SweepRequest
from harness.sweep.show import SweepDisplay


@dataclass(frozen=True)
class Sitting:
    """What may differ from one sitting of a sweep to the next. ``is_warm``: runs start from warm parents.

    ``meeting``: address and port at which several nodes meet, where it is no longer the first sitting's.
    """

    max_minutes: float | None = None
    is_warm: bool = True
    meeting: Meeting = field(default_factory=Meeting)


def dry_run_sweep(request: SweepRequest, display: SweepDisplay) -> None:
    """Print the cells with their predictions and fates. Starts tracers only, and writes no results."""
    display.plan(plan_sweep(request, this_host(), asks_megatron=False, tell=display.says))


def start_sweep(request: SweepRequest, display: SweepDisplay, sitting: Sitting) -> ExitCode:
    """Plan, write the plan down, run. BadRequestError before anything is started or written."""
    host = this_host()
    if request.asked.gpu.lower() in GPUS and request.launch.launcher != "replay":
        software_here(request.asked.gpu.lower(), host)  # every cell would wait for a driver that does not answer
    plan = plan_sweep(request, host, asks_megatron=True, tell=display.says)
    SweepBatch(Path("SWEEP"), host, plan).require_startable()
    sweep_dir = _new_folder(request, plan)
    plan = plan.model_copy(update={"sweep_id": sweep_dir.name})
    with holding(sweep_dir, "sweep"):
        with full_disk_told(sweep_dir):
            SWEEP_FOLDERS.write_plan(sweep_dir, plan)
        return _run(SweepBatch(sweep_dir, host, plan), display, sitting)


def _new_folder(request: SweepRequest, plan: SweepPlan) -> Path:
    if request.sweep_dir is not None:
        return made_sweep_dir(request.sweep_dir)
    if request.launch.nnodes > 1:
        raise BadRequestError(
            f"--nnodes {request.launch.nnodes} needs a folder that all nodes see",
            remedy="give every node the same --sweep_dir on a shared file system",
        )
    return SWEEP_FOLDERS.new_dir(results_dir(request.results_dir), plan.recipe)


def resume_sweep(reference: str, results: Path | None, display: SweepDisplay, sitting: Sitting) -> ExitCode:
    """Run what is missing of a sweep, exactly as its own plan says.

    BadRequestError for a sweep that another process works on, and where the software is no longer the same.
    """
    host, data = this_host(), read_sweep(reference, results)
    if data.plan.is_imported:
        raise BadRequestError(
            f"{data.sweep_dir}: imported from training logs: nothing of it can be run here",
            remedy=f"mbr-perf report {data.sweep_dir}",
        )
    with holding(data.sweep_dir, "sweep"):
        plan = meeting_at(data.plan, sitting.meeting)
        before = {plan.gpu: plan.software} if plan.software else {}
        require_same_software(before, host, "sweep", measures_here=plan.launch.launcher != "replay")
        batch = SweepBatch(data.sweep_dir, host, plan)
        batch.require_startable()
        return _run(batch, display, sitting, elsewhere(data, host.hostname))


def meeting_at(plan: SweepPlan, meeting: Meeting) -> SweepPlan:
    """The plan with the address and the port that were said anew."""
    return plan.model_copy(update={"launch": meeting.of(plan.launch)})


def _run(batch: SweepBatch, display: SweepDisplay, sitting: Sitting, warning: str = "") -> ExitCode:
    signal, due = None, batch.due()
    display.begins(batch.plan, batch.folder, len(due), warning if due else "")
    if due:
        with ExitStack() as stack:
            warm = sitting.is_warm and batch.plan.launch.launcher == "torchrun"
            parents = stack.enter_context(WarmParents()) if warm else None
            limit = TimeLimit(sitting.max_minutes) if sitting.max_minutes is not None else None
            signal = play(batch, LocalRuns(batch, display.progress, parents, limit))
    return answer(batch, display, signal)


def follow_sweep(follower: Follower, display: SweepDisplay) -> ExitCode:
    """Take part in every run of a sweep that node 0 leads. Errors as for `follow`."""

    def opened() -> tuple[SweepBatch, tuple[DueCell, ...]]:
        plan = meeting_at(read_document(follower.folder / SWEEP, SweepPlan), follower.meeting)
        batch = SweepBatch(follower.folder, this_host(), plan)
        batch.require_startable(follower.node_rank)
        return batch, batch.every_run()

    return follow(follower, SWEEP, opened, display.progress)


def resumed(node: NodeOfJob, attempt: JobAttempt) -> ExitCode:
    """Do the part of this node in what is missing of the sweep."""
    sweep_dir = Path(node.job.subject)
    meeting = Meeting(node.master_addr, attempt.master_port) if node.job.nnodes > 1 else Meeting()
    if node.place.node_rank == 0:
        sitting = Sitting(read_sweep(sweep_dir).plan.max_minutes, meeting=meeting)
        return resume_sweep(str(sweep_dir), None, SweepDisplay(), sitting)
    return follow_sweep(Follower(sweep_dir, node.place.node_rank, meeting), SweepDisplay())


if __name__ == "__main__":
    sys.exit(main(part=resumed))
