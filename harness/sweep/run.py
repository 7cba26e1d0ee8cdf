"""Starts and resumes a sweep: on this machine, inside a job, or as a job."""

import sys
from collections.abc import Mapping
from pathlib import Path

from harness.batch.engine import begun, holding, play_here
from harness.batch.launches import require_same_software
from harness.batch.nodes import Follower, follow
from harness.cluster.node import NodeOfJob
from harness.cluster.showing import JobDisplay
from harness.cluster.submission import JobRequest, controller_of, hand_over, require_accepted, require_gpu_named
from harness.cluster.task import main
from harness.errors import BadRequestError, ExitCode
from harness.experiment.gpu import GPUS
from harness.judge.saving import elsewhere
from harness.launch.build import require_same_build
from harness.launch.environment import Host, this_host
from harness.launch.machine import software_for
from harness.measure.experiment import Display
from harness.measure.values import launch_document
from harness.records.batches import SWEEP_FOLDERS
from harness.records.folders import results_dir
from harness.records.job import ClusterRequest, JobAttempt, JobRecord, job_dirs, read_job, read_submitted
from harness.records.strict_json import read_document
from harness.records.sweep import SWEEP, SweepPlan, read_sweep
from harness.show import json
from harness.show.terminal import pass_time
from harness.sweep.batch import DueCell, SweepBatch
from harness.sweep.plan import plan_sweep
from harness.sweep.reports import SweepDisplay, answer
from harness.sweep.request import SweepRequest
from harness.sweep.values import SweepJobPlanDocument
from harness.units import command_text


def dry_run_sweep(request: SweepRequest, display: SweepDisplay, cluster: ClusterRequest | None = None) -> None:
    """Print the cells with their predictions and fates, and the batch file of a job. Starts tracers only."""
    host = this_host()
    if cluster is None:
        display.plan(plan_sweep(request, host, asks_megatron=False, waits=pass_time))
        return
    plan, results = _planned(request, host), results_dir(request.results_dir).absolute()
    batch = SweepBatch(results / SWEEP_FOLDERS.parent / "SWEEP", host, plan)
    job = sweep_job(batch, cluster, results).checked(host)
    if display.as_json:
        json.answer(SweepJobPlanDocument.of(plan, job=launch_document(job)))
        return
    display.plan(plan)
    display.batch_files([job])


def start_sweep(request: SweepRequest, display: SweepDisplay, *, is_warm: bool) -> ExitCode:
    """Plan, write the plan down, run. BadRequestError before anything is started or written."""
    host = this_host()
    if (gpu := request.asked.gpu.lower()) in GPUS and request.launch.launcher != "replay":
        software_for(gpu, host, must_answer=True)  # else every cell would wait for a driver that does not answer
    plan = plan_sweep(request, host, asks_megatron=True, waits=pass_time)
    SweepBatch(Path("SWEEP"), host, plan).require_startable()
    sweep_dir = SWEEP_FOLDERS.new_dir(results_dir(request.results_dir), plan.recipe)
    plan = plan.model_copy(update={"sweep_id": sweep_dir.name})
    with begun(SWEEP_FOLDERS, sweep_dir, plan):
        return _run(SweepBatch(sweep_dir, host, plan), display, is_warm=is_warm)


def resume_sweep(reference: str, results: Path | None, display: SweepDisplay, *, is_warm: bool) -> ExitCode:
    """Do the missing runs of a sweep, by its own plan. Only judge it if there are none.

    BadRequestError for a sweep that another process or a job works on, and where the software is no longer the same.
    """
    batch = _without_jobs(reference, results, this_host())
    return _resumed(batch.folder, display, is_warm=is_warm) if batch.due() else answer(batch, display)


def _resumed(sweep_dir: Path, display: SweepDisplay, *, is_warm: bool, **meeting: str | int) -> ExitCode:
    """Do the missing runs. ``meeting``: address and port of the nodes of a job."""
    host, data = this_host(), read_sweep(sweep_dir)
    with holding(data.sweep_dir, "sweep"):
        plan = _met(data.plan, meeting)
        before = {plan.gpu: plan.software} if plan.software else {}
        require_same_software(before, host, "sweep", measures_here=plan.launch.launcher != "replay")
        for name, build in plan.builds.items():
            what = f"the one of the cells with python={name}"
            require_same_build("python", build, host, what, "resume it with the environment that started it")
        batch = SweepBatch(data.sweep_dir, host, plan)
        batch.require_startable()
        return _run(batch, display, elsewhere(data, host.hostname), is_warm=is_warm)


def _run(batch: SweepBatch, display: SweepDisplay, warning: str = "", *, is_warm: bool) -> ExitCode:
    signal, due = None, batch.due()
    display.begins(batch.plan, batch.folder, len(due), warning if due else "")
    if due:
        signal = play_here(batch, display.progress, is_warm=is_warm and batch.plan.launch.launcher == "torchrun")
    return answer(batch, display, signal)


def _met(plan: SweepPlan, meeting: Mapping[str, str | int]) -> SweepPlan:
    return plan.model_copy(update={"launch": plan.launch.model_copy(update=meeting)})


def follow_sweep(follower: Follower, display: SweepDisplay, **meeting: str | int) -> ExitCode:
    """Take part in every run of a sweep that node 0 of the job leads. Errors as for `follow`."""

    def opened() -> tuple[SweepBatch, tuple[DueCell, ...]]:
        plan = _met(read_document(follower.folder / SWEEP, SweepPlan), meeting)
        batch = SweepBatch(follower.folder, this_host(), plan)
        batch.require_startable(follower.node_rank)
        return batch, batch.every_run()

    return follow(follower, SWEEP, opened, display.progress)


def resumed(node: NodeOfJob, attempt: JobAttempt) -> ExitCode:
    """Do this node's part of the missing runs."""
    sweep_dir, meeting = Path(node.job.subject), dict[str, str | int]()
    if node.job.nnodes > 1:
        meeting = {"master_addr": node.master_addr, "master_port": attempt.master_port}
    if node.place.node_rank == 0:
        return _resumed(sweep_dir, SweepDisplay(), is_warm=True, **meeting)
    rank, place, starter = node.place.node_rank, node.place.nodes, node.job.options.cluster
    follower = Follower(sweep_dir, rank, starter, place, node.has_first_restarted)
    return follow_sweep(follower, SweepDisplay(), **meeting)


def sweep_job(batch: SweepBatch, cluster: ClusterRequest, results: Path) -> JobRequest:
    """Return the job that resumes the sweep on its nodes."""
    plan = batch.plan
    return JobRequest(
        what="sweep",
        subject=batch.folder,
        label=plan.recipe,
        specs=tuple(cell.spec for cell in plan.planned),
        launch=plan.launch,
        gate=plan.gate,
        options=cluster.options,
        results=results,
    )


def start_sweep_on_cluster(request: SweepRequest, cluster: ClusterRequest, display: SweepDisplay) -> ExitCode:
    """Plan, write the plan down, submit, wait and judge. BadRequestError before anything is written."""
    host, results = this_host(), results_dir(request.results_dir).absolute()
    plan = _planned(request, host)
    batch = SweepBatch(results / SWEEP_FOLDERS.parent / "SWEEP", host, plan)
    require_accepted(sweep_job(batch, cluster, results), cluster, host)
    sweep_dir = SWEEP_FOLDERS.new_dir(results, plan.recipe)
    batch = SweepBatch(sweep_dir, host, plan.model_copy(update={"sweep_id": sweep_dir.name}))
    with begun(SWEEP_FOLDERS, sweep_dir, batch.plan):
        display.begins(batch.plan, sweep_dir, len(batch.every_run()))
    return _submitted(batch, cluster, results, display)


def resume_sweep_on_cluster(
    reference: str, results: Path | None, cluster: ClusterRequest, display: SweepDisplay
) -> ExitCode:
    """Submit a job for the missing runs. BadRequestError while an earlier job is at work on the sweep."""
    batch = _without_jobs(reference, results, this_host())
    with holding(batch.folder, "sweep"):  # no other process runs it here
        due = batch.due()
    display.begins(batch.plan, batch.folder, len(due))
    if not due:
        return answer(batch, display)
    return _submitted(batch, cluster, SWEEP_FOLDERS.home(batch.folder, results), display)


def answer_job(job: JobRecord, display: SweepDisplay) -> ExitCode:
    """Judge and show the sweep that a job belongs to."""
    sweep_dir = Path(job.subject)
    return answer(SweepBatch(sweep_dir, this_host(), read_sweep(sweep_dir).plan), display)


def _without_jobs(reference: str, results: Path | None, host: Host) -> SweepBatch:
    sweep_dir = SWEEP_FOLDERS.folder_of(reference, results).absolute()
    batch = SweepBatch(sweep_dir, host, read_sweep(sweep_dir).plan)
    for job_dir in job_dirs(SWEEP_FOLDERS.home(sweep_dir, results)) if batch.due() else ():
        job, submitted = read_job(job_dir), read_submitted(job_dir)
        if job.subject != str(sweep_dir) or submitted is None:
            continue
        state = controller_of(job.options, host.shell).state(submitted)
        if not state.has_ended:
            raise BadRequestError(
                f"{sweep_dir}: {job.options.cluster} job {submitted.job_id} is at work on it: {state.text}",
                remedy=f"{command_text('jobs', 'wait', job_dir)}, or {command_text('jobs', 'cancel', job_dir)}",
            )
    return batch


def _submitted(batch: SweepBatch, cluster: ClusterRequest, results: Path, display: SweepDisplay) -> ExitCode:
    asked, of_job = sweep_job(batch, cluster, results), JobDisplay(Display(as_json=display.as_json))
    again = f"{command_text('sweep', '--resume', batch.folder, '--launcher', cluster.options.launcher)} ..."
    keeps = f"its plan is kept: {again} submits it again"
    return hand_over(asked, cluster, batch.host, of_job, lambda _: answer(batch, display), keeps)


def _planned(request: SweepRequest, host: Host) -> SweepPlan:
    """Return the plan, for as many nodes as its cells need. BadRequestError where these differ in that."""
    require_gpu_named(request.asked.gpu)
    plan = plan_sweep(request, host, asks_megatron=False, waits=pass_time)
    counts = sorted({cell.spec.num_nodes for cell in plan.planned})
    if len(counts) > 1:
        listed = ", ".join(str(count) for count in counts)
        raise BadRequestError(
            f"the cells need different numbers of nodes ({listed}), and a job has a fixed number",
            remedy="one sweep per number of GPUs",
        )
    software, assumed = software_for(plan.gpu, host)
    changes = {
        "launch": plan.launch.model_copy(update={"nnodes": counts[0]}),
        # Software missing here may exist on the nodes, which check the cells by their own.
        "software": None if assumed or software.torch is None else plan.software,
    }
    return plan.model_copy(update=changes)


if __name__ == "__main__":
    sys.exit(main(part=resumed))
