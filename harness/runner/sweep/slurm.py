"""A sweep on a cluster: planned here, run by one Slurm job or by one task of an array per cell, judged here."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BadRequestError, ExitCode
from harness.launch.disk import full_disk_told
from harness.launch.environment import Host, this_host
from harness.launch.slurm.commands import Slurm
from harness.launch.slurm.job import SlurmJob
from harness.launch.slurm.state import job_state
from harness.records.job import JobRecord, JobRun
from harness.records.jobs import JOBS, job_dirs, new_job_dir, read_job, read_submitted
from harness.records.store import results_dir
from harness.records.sweep import SweepPlan
from harness.records.sweeps import (
    SweepData,
    made_sweep_dir,
    new_sweep_dir,
    read_sweep,
    run_dir_of,
    run_id_of,
    sweep_dir_of,
    write_plan,
)
from harness.report import json
from harness.report.console import Console
from harness.report.printing import print_lines
from harness.report.sweep_plan import plan_document
from harness.runner.hold import holding
from harness.runner.jobs.collecting import collect_ended
from harness.runner.jobs.judging import wait_and_judge
from harness.runner.jobs.showing import JobDisplay
from harness.runner.jobs.submission import Origin, prepare, require_submittable, submit
from harness.runner.machine import software_for
from harness.runner.slurm.request import SlurmRequest
from harness.runner.slurm.run import job_name, num_nodes
from harness.runner.sweep.attempts import Place
from harness.runner.sweep.execution import Sweeping
from harness.runner.sweep.planning import plan_sweep
from harness.runner.sweep.request import SweepRequest
from harness.runner.sweep.showing import SweepDisplay
from harness.runner.sweep.sweep import answer_sweep

SWEEPS = "sweeps"


@dataclass(frozen=True)
class SweepJob:
    """A sweep as a job is to run it. ``due``: cell and repeat of its runs; ``results``: where jobs lie, absolute."""

    sweep_dir: Path
    plan: SweepPlan
    due: tuple[Place, ...]
    slurm: SlurmRequest
    results: Path

    def record(self, job_dir: Path) -> JobRecord:
        """One job for all, or with an array one task per cell, its repeats inside."""
        plan, origin, specs = self.plan, Origin.here(), [cell.spec for cell in self.plan.cells if cell.spec]
        gpus = 0 if specs[0].gpu_type.is_cpu else max(min(spec.num_gpus, spec.gpus_per_node) for spec in specs)
        cells = list(dict.fromkeys(index for index, _ in self.due))
        is_array = self.slurm.array
        return JobRecord(
            job_dir=str(job_dir),
            name=job_name(plan.recipe),
            what="sweep",
            subject=str(self.sweep_dir),
            nnodes=plan.launch.nnodes,
            gpus_per_node=gpus,
            num_tasks=max(1, len(cells)) if is_array else 1,
            runs=tuple(self._run(place, cells.index(place[0])) for place in sorted(self.due)) if is_array else (),
            sweep_dir=None if is_array else str(self.sweep_dir),
            launch=plan.launch,
            gate=plan.gate,
            results_dir=str(self.results),
            slurm=self.slurm.options,
            command=origin.command,
            created_at=origin.created_at,
            mbr_perf=origin.mbr_perf,
        )

    def _run(self, place: Place, task: int) -> JobRun:
        cell = self.plan.cells[place[0]]
        assert cell.spec is not None  # it is to run
        return JobRun(
            run_dir=str(run_dir_of(self.sweep_dir, *place)),
            run_id=run_id_of(self.plan.sweep_id, *place),
            spec=cell.spec,
            sources=cell.sources,
            notes=cell.notes,
            force=tuple(finding.id for finding in cell.findings if finding.overridden),
            task=task,
            prediction=cell.prediction,
            no_prediction=cell.no_prediction,
        )


@dataclass(frozen=True)
class SweepJobDisplay:
    """Who is told: of the sweep, and of its job."""

    sweep: SweepDisplay
    job: JobDisplay

    def plan(self, plan: SweepPlan, job: SlurmJob) -> None:
        """The dry run: the cells, then the batch file and the command that would submit it."""
        if self.sweep.as_json:
            print(json.text(plan_document(plan) | {"job": job.document()}))  # noqa: T201 (the answer)
            return
        self.sweep.plan(plan)
        print_lines(Console(highlight=False), ["", *job.render().splitlines(), "", shlex.join(job.sbatch)])


def dry_run_sweep_on_slurm(request: SweepRequest, slurm: SlurmRequest, display: SweepJobDisplay) -> None:
    """Print the cells, and after them the batch file that would be submitted. Submits nothing, writes no results."""
    host, results = this_host(), results_dir(request.results_dir).absolute()
    plan = _planned(request, host, display)
    job = SweepJob(results / SWEEPS / "SWEEP", plan, _all(plan), slurm, results)
    display.plan(plan, require_submittable(job.record(results / JOBS / "JOB"), host))


def start_sweep_on_slurm(request: SweepRequest, slurm: SlurmRequest, display: SweepJobDisplay) -> ExitCode:
    """Plan, write the plan down, submit, and unless told otherwise wait and judge.

    BadRequestError before anything is written.
    """
    host, results = this_host(), results_dir(request.results_dir).absolute()
    plan = _planned(request, host, display)
    job = SweepJob(results / SWEEPS / "SWEEP", plan, _all(plan), slurm, results)
    require_submittable(job.record(results / JOBS / "JOB"), host)
    named = request.sweep_dir
    sweep_dir = made_sweep_dir(named.absolute()) if named else new_sweep_dir(results, plan.recipe)
    plan = plan.model_copy(update={"sweep_id": sweep_dir.name})
    with holding(sweep_dir), full_disk_told(sweep_dir):
        write_plan(sweep_dir, plan)
    display.sweep.begins(plan, sweep_dir, len(job.due))
    return _submitted(SweepJob(sweep_dir, plan, job.due, slurm, results), host, display)


def resume_sweep_on_slurm(
    reference: str, results: Path | None, slurm: SlurmRequest, display: SweepJobDisplay
) -> ExitCode:
    """Submit a job for what is missing of a sweep, after collecting what earlier jobs of it left."""
    host = this_host()
    data = collected(reference, results, host)
    with holding(data.sweep_dir):  # nobody runs it here, and whoever was killed at it holds it no more
        due = Sweeping(data.sweep_dir, data.plan, host, None, None).due()
    display.sweep.begins(data.plan, data.sweep_dir, len(due))
    if not due:
        return answer_sweep(data.sweep_dir, host, display.sweep)
    home = _home(data.sweep_dir, results)
    return _submitted(SweepJob(data.sweep_dir.absolute(), data.plan, due, slurm, home), host, display)


def answered_from_jobs(reference: str, results: Path | None, host: Host, display: SweepDisplay) -> ExitCode | None:
    """The answer of a sweep that its jobs have finished, wherever one asks; None where this is to be done, or no job was.

    BadRequestError while a job is at work on it.
    """
    data = collected(reference, results, host)
    is_due = bool(Sweeping(data.sweep_dir, data.plan, host, None, None).due())
    return None if is_due or not _jobs_of(data.sweep_dir, results) else answer_sweep(data.sweep_dir, host, display)


def _jobs_of(sweep_dir: Path, results: Path | None) -> list[Path]:
    """Folders of the jobs that were submitted for it, oldest first."""
    named = str(sweep_dir.absolute())
    folders = job_dirs(_home(sweep_dir, results))
    return [folder for folder in folders if read_job(folder).subject == named and read_submitted(folder)]


def collected(reference: str, results: Path | None, host: Host) -> SweepData:
    """The sweep, with the runs that its jobs did not commit recorded as failed once these have ended.

    BadRequestError while a job is still at work on it.
    """
    sweep_dir = sweep_dir_of(reference, results).absolute()
    data, controller = read_sweep(sweep_dir), Slurm(host.shell)
    is_done = not Sweeping(sweep_dir, data.plan, host, None, None).due()
    for job_dir in () if is_done else _jobs_of(sweep_dir, results):
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
    return read_sweep(sweep_dir)


def _home(sweep_dir: Path, results: Path | None) -> Path:
    """The results folder that the sweep and its jobs lie in."""
    named = sweep_dir.absolute()
    return named.parents[1] if named.parent.name == SWEEPS else results_dir(results).absolute()


def _submitted(asked: SweepJob, host: Host, display: SweepJobDisplay) -> ExitCode:
    controller = Slurm(host.shell)
    display.job.ignored(controller.ignored)
    require_submittable(asked.record(asked.results / JOBS / "JOB"), host)
    job = prepare(asked.record(new_job_dir(asked.results, asked.plan.recipe)), host)
    if not asked.slurm.submit:
        display.job.prepared(job)
        return ExitCode.OK
    try:
        submitted = submit(job, controller)
    except BadRequestError as error:
        remedy = f"its plan is kept: mbr-perf sweep --resume {asked.sweep_dir} --launcher slurm ... submits it anew"
        raise BadRequestError(str(error), remedy=remedy) from error
    display.job.submitted(job.record, submitted)
    if asked.slurm.detach:
        display.job.detached(job.record, submitted)
        return ExitCode.OK
    return wait_and_judge(Path(job.record.job_dir), controller, display.job)


def _planned(request: SweepRequest, host: Host, display: SweepJobDisplay) -> SweepPlan:
    """The plan, for as many nodes as its cells need. BadRequestError where these differ in that."""
    if not request.asked.gpu:
        raise BadRequestError(
            "--launcher slurm cannot see from here which GPUs the nodes have",
            remedy="name them with --gpu, or --gpu cpu",
        )
    plan = plan_sweep(request, host, asks_megatron=False, tell=display.sweep.says)
    counts = sorted({num_nodes(cell.spec) for cell in plan.cells if cell.fate == "run" and cell.spec})
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


def _all(plan: SweepPlan) -> tuple[Place, ...]:
    running = [cell.index for cell in plan.cells if cell.fate == "run"]
    return tuple((index, repeat) for repeat in range(plan.repeats) for index in running)
