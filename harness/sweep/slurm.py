"""A sweep on a cluster: planned here, run by one Slurm job or by one task of an array per cell, judged here."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from harness.batch.folder import holding
from harness.batch.launches import num_nodes
from harness.batch.slurm.collecting import collect_ended
from harness.batch.slurm.showing import JobDisplay
from harness.batch.slurm.submission import JobRequest, hand_over
from harness.errors import BadRequestError, ExitCode
from harness.launch.disk import full_disk_told
from harness.launch.environment import Host, this_host
from harness.launch.slurm.commands import Slurm
from harness.launch.slurm.job import SlurmJob
from harness.launch.slurm.state import job_state
from harness.records.batches import SWEEP_FOLDERS
from harness.records.job import JobRecord, SlurmRequest, job_dirs, read_job, read_submitted
from harness.records.store import results_dir
from harness.records.sweep import SweepPlan
from harness.records.sweeps import made_sweep_dir, read_sweep
from harness.run.machine import software_for
from harness.showing import json
from harness.showing.printing import Console, print_lines
from harness.sweep.batch import DueCell, SweepBatch
from harness.sweep.plan import plan_sweep
from harness.sweep.reports import answer
from harness.sweep.request import SweepRequest
from harness.sweep.show import SweepDisplay, plan_document


@dataclass(frozen=True)
class SweepJobDisplay:
    """The displays of the sweep and of its job."""

    sweep: SweepDisplay
    job: JobDisplay

    def plan(self, plan: SweepPlan, job: SlurmJob) -> None:
        """The dry run: the cells, then the batch file and the command that would submit it."""
        if self.sweep.as_json:
            print(json.text(plan_document(plan) | {"job": job.document()}))  # noqa: T201 (the answer)
            return
        self.sweep.plan(plan)
        print_lines(Console(highlight=False), ["", *job.render().splitlines(), "", shlex.join(job.sbatch)])


def sweep_job(batch: SweepBatch, due: tuple[DueCell, ...], slurm: SlurmRequest, results: Path) -> JobRequest:
    """One job for all, or with an array one task per cell, its repeats inside."""
    plan, cells = batch.plan, list(dict.fromkeys(one.entry.index for one in due))
    in_order = sorted(due, key=lambda one: (one.entry.index, one.number))
    runs = tuple(batch.job_run(one, task=cells.index(one.entry.index)) for one in in_order)
    return JobRequest(
        what="sweep",
        subject=batch.folder,
        label=plan.recipe,
        specs=tuple(cell.spec for cell in plan.planned),
        runs=runs if slurm.array else (),
        num_tasks=max(1, len(cells)) if slurm.array else 1,
        resumes=None if slurm.array else batch.folder,
        launch=plan.launch,
        gate=plan.gate,
        options=slurm.options,
        results=results,
    )


def dry_run_sweep_on_slurm(request: SweepRequest, slurm: SlurmRequest, display: SweepJobDisplay) -> None:
    """Print the cells, and after them the batch file that would be submitted. Submits nothing, writes no results."""
    host, results = this_host(), results_dir(request.results_dir).absolute()
    batch = _unstarted(_planned(request, host, display), host, results)
    display.plan(batch.plan, sweep_job(batch, batch.every_run(), slurm, results).checked(host))


def start_sweep_on_slurm(request: SweepRequest, slurm: SlurmRequest, display: SweepJobDisplay) -> ExitCode:
    """Plan, write the plan down, submit, and wait and judge unless asked not to.

    BadRequestError before anything is written.
    """
    host, results = this_host(), results_dir(request.results_dir).absolute()
    plan = _planned(request, host, display)
    batch = _unstarted(plan, host, results)
    sweep_job(batch, batch.every_run(), slurm, results).checked(host)
    named = request.sweep_dir
    sweep_dir = made_sweep_dir(named.absolute()) if named else SWEEP_FOLDERS.new_dir(results, plan.recipe)
    batch = SweepBatch(sweep_dir, host, plan.model_copy(update={"sweep_id": sweep_dir.name}))
    with holding(sweep_dir, "sweep"), full_disk_told(sweep_dir):
        SWEEP_FOLDERS.write_plan(sweep_dir, batch.plan)
    display.sweep.begins(batch.plan, sweep_dir, len(batch.every_run()))
    return _submitted(batch, batch.every_run(), slurm, results, display)


def resume_sweep_on_slurm(
    reference: str, results: Path | None, slurm: SlurmRequest, display: SweepJobDisplay
) -> ExitCode:
    """Submit a job for what is missing of a sweep, after collecting what earlier jobs of it left."""
    batch = _collected(reference, results, this_host())
    with holding(batch.folder, "sweep"):  # no other process runs it here
        due = batch.due()
    display.sweep.begins(batch.plan, batch.folder, len(due))
    if not due:
        return answer(batch, display.sweep)
    return _submitted(batch, due, slurm, _home(batch.folder, results), display)


def answered_from_jobs(reference: str, results: Path | None, host: Host, display: SweepDisplay) -> ExitCode | None:
    """The answer of a sweep that its jobs have finished, wherever one asks; None where runs are due, or where it had no job.

    BadRequestError while a job is at work on it.
    """
    batch = _collected(reference, results, host)
    return None if batch.due() or not _jobs_of(batch.folder, results) else answer(batch, display)


def answer_job(job: JobRecord, display: SweepDisplay) -> ExitCode:
    """Judge and show the sweep that a job belongs to."""
    sweep_dir = Path(job.subject)
    return answer(SweepBatch(sweep_dir, this_host(), read_sweep(sweep_dir).plan), display)


def _jobs_of(sweep_dir: Path, results: Path | None) -> list[Path]:
    """Folders of the jobs that were submitted for it, oldest first."""
    folders = job_dirs(_home(sweep_dir, results))
    return [folder for folder in folders if read_job(folder).subject == str(sweep_dir) and read_submitted(folder)]


def _collected(reference: str, results: Path | None, host: Host) -> SweepBatch:
    """The sweep, with the runs that its jobs did not commit recorded as failed once these have ended.

    BadRequestError while a job is still at work on it.
    """
    sweep_dir = SWEEP_FOLDERS.folder_of(reference, results).absolute()
    batch, controller = SweepBatch(sweep_dir, host, read_sweep(sweep_dir).plan), Slurm(host.shell)
    for job_dir in _jobs_of(sweep_dir, results) if batch.due() else ():
        job, submitted = read_job(job_dir), read_submitted(job_dir)
        assert submitted is not None  # of those that were
        states = job_state(controller, submitted)
        if not all(state.has_ended for state in states):
            told = "; ".join(dict.fromkeys(state.text for state in states))
            raise BadRequestError(
                f"{sweep_dir}: Slurm job {submitted.job_id} is at work on it: {told}",
                remedy=f"mbr-perf jobs wait {job_dir}, or jobs cancel {job_dir}",
            )
        collect_ended(job, submitted, states)
    return batch


def _home(sweep_dir: Path, results: Path | None) -> Path:
    """The results folder that the sweep and its jobs lie in."""
    named = sweep_dir.absolute()
    return named.parents[1] if named.parent.name == SWEEP_FOLDERS.parent else results_dir(results).absolute()


def _unstarted(plan: SweepPlan, host: Host, results: Path) -> SweepBatch:
    return SweepBatch(results / SWEEP_FOLDERS.parent / "SWEEP", host, plan)


def _submitted(
    batch: SweepBatch, due: tuple[DueCell, ...], slurm: SlurmRequest, results: Path, display: SweepJobDisplay
) -> ExitCode:
    def refused(_: JobRecord, error: BadRequestError) -> BadRequestError:
        remedy = f"its plan is kept: mbr-perf sweep --resume {batch.folder} --launcher slurm ... submits it anew"
        return BadRequestError(str(error), remedy=remedy)

    asked = sweep_job(batch, due, slurm, results)
    return hand_over(asked, slurm, batch.host, display.job, lambda _: answer(batch, display.sweep), refused)


def _planned(request: SweepRequest, host: Host, display: SweepJobDisplay) -> SweepPlan:
    """The plan, for as many nodes as its cells need. BadRequestError where these differ in that."""
    if not request.asked.gpu:
        raise BadRequestError(
            "--launcher slurm cannot see from here which GPUs the nodes have",
            remedy="name them with --gpu, or --gpu cpu",
        )
    plan = plan_sweep(request, host, asks_megatron=False, tell=display.sweep.says)
    counts = sorted({num_nodes(cell.spec) for cell in plan.planned})
    if len(counts) > 1:
        listed = ", ".join(str(count) for count in counts)
        raise BadRequestError(
            f"the cells need different numbers of nodes ({listed}), and a Slurm job has one",
            remedy="one sweep per number of GPUs",
        )
    software, assumed = software_for(plan.gpu, host)
    changes = {
        "launch": plan.launch.model_copy(update={"nnodes": counts[0]}),
        # What is not installed here says nothing of the nodes, which judge the cells by what they have.
        "software": None if assumed or software.torch is None else plan.software,
    }
    return plan.model_copy(update=changes)
