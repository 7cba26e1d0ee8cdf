"""`mbr-perf run --launcher slurm`: understood here, run by one job for all repeats, judged here as any run is."""

from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import BadRequestError, ExitCode
from harness.launch.environment import Host, this_host
from harness.launch.rendezvous import Nodes
from harness.launch.slurm.commands import Slurm
from harness.launch.slurm.job import SlurmJob
from harness.launch.slurm.values import option_problems
from harness.recipes.problems import Problems
from harness.records.goldens import find_golden
from harness.records.job import JobRecord, JobRun
from harness.records.jobs import JOBS, new_job_dir
from harness.records.store import results_dir
from harness.records.sweep import SweepLaunch
from harness.runner.experiment import run_folder
from harness.runner.jobs.judging import wait_and_judge
from harness.runner.jobs.runs import drop_unstarted
from harness.runner.jobs.showing import JobDisplay
from harness.runner.jobs.submission import Origin, prepare, require_submittable, submit
from harness.runner.prediction import cached_prediction
from harness.runner.request import RunRequest
from harness.runner.slurm.request import SlurmRequest
from harness.runner.understanding import Understood, looked_over, understand
from harness.spec.experiment import ExperimentSpec

_SOMEWHERE = "HEAD"  # the first node is known in the job only


@dataclass(frozen=True)
class SlurmRun:
    """A run as a job is going to do it, still without folders."""

    request: RunRequest
    slurm: SlurmRequest
    understood: Understood
    nnodes: int

    @property
    def results(self) -> Path:
        """Where the job and its runs go; nodes read it, so that it is absolute."""
        return results_dir(self.request.results_dir).absolute()

    @property
    def label(self) -> str:
        """What folders and the job are called by."""
        return Path(self.request.asked.model_recipe_name).stem


def dry_run_on_slurm(request: RunRequest, slurm: SlurmRequest, display: JobDisplay) -> None:
    """Print the batch file that would be submitted. Writes and submits nothing."""
    asked = _understood(request, slurm)
    runs = asked.results / "runs"
    names = ["RUN"] if request.repeats == 1 else [f"RUN{number}" for number in range(1, request.repeats + 1)]
    folders = [runs / name for name in names] if request.run_dir is None else [request.run_dir.absolute()]
    job = require_submittable(_record(asked, asked.results / JOBS / "JOB", folders), asked.understood.host)
    display.plan(asked.understood, cached_prediction(asked.understood), job)


def run_on_slurm(request: RunRequest, slurm: SlurmRequest, display: JobDisplay) -> ExitCode:
    """Submit one job for all repeats and, unless it is to be left alone, wait for it and judge it."""
    asked = _understood(request, slurm)
    host, folders = asked.understood.host, [Path("RUN").absolute()] * request.repeats
    require_submittable(_record(asked, asked.results / JOBS / "JOB", folders), host)
    display.understood(asked.understood)
    controller = Slurm(host.shell)
    display.ignored(controller.ignored)
    job = _prepared(asked, host)
    if not slurm.submit:
        display.prepared(job)
        return ExitCode.OK
    try:
        submitted = submit(job, controller)
    except BadRequestError:
        drop_unstarted(job.record.runs)
        raise
    display.submitted(job.record, submitted)
    if slurm.detach:
        display.detached(job.record, submitted)
        return ExitCode.OK
    return wait_and_judge(Path(job.record.job_dir), controller, display)


def num_nodes(spec: ExperimentSpec) -> int:
    """Nodes for all ranks: one where they fit on it, else as many as ``gpus_per_node`` asks for."""
    return max(1, -(-spec.num_gpus // spec.gpus_per_node))


def launch_record(request: RunRequest, nnodes: int) -> SweepLaunch:
    """How the nodes launch each run, in the words of a plan on disk."""
    return SweepLaunch(
        launcher="torchrun",
        timeout_s=request.timeout_s,
        hang_timeout_s=request.hang_timeout_s,
        sample_interval_ms=request.sample_interval_ms,
        pass_env=request.pass_env,
        nnodes=nnodes,
        master_port=request.nodes.master_port,
    )


def _understood(request: RunRequest, slurm: SlurmRequest) -> SlurmRun:
    """As `mbr-perf run` understands it, for nodes that are not this machine. BadRequestError with every problem."""
    problems = Problems()
    if not request.asked.gpu:
        problems.add(
            "--launcher slurm cannot see from here which GPUs the nodes have", "name them with --gpu, or --gpu cpu"
        )
        problems.raise_if_any()
    if request.run_dir is not None and request.repeats > 1:
        problems.add("--run_dir names one run, --repeats makes several", "leave one of them out")
    for problem in option_problems(slurm.options, request.pass_env):
        problems.add(problem.message, problem.remedy)
    host = this_host()
    port, nnodes = request.nodes.master_port, 1
    understood: Understood | None = None
    with problems.collecting():
        nnodes = num_nodes(looked_over(request, host)[0].spec)
        nodes = Nodes(nnodes, 0, _SOMEWHERE, port) if nnodes > 1 else Nodes(master_port=port)
        understood = understand(replace(request, launcher="torchrun", nodes=nodes), host, Path("RUN"))
        find_golden(understood.spec, request.gate.golden_values_path)
    problems.raise_if_any()
    assert understood is not None
    return SlurmRun(request, slurm, understood, nnodes)


def _prepared(asked: SlurmRun, host: Host) -> SlurmJob:
    """Make the folders of the job and its runs, and write the job's files."""
    request = replace(asked.request, results_dir=asked.results)
    folders = [run_folder(request).absolute() for _ in range(request.repeats)]
    return prepare(_record(asked, new_job_dir(asked.results, asked.label), folders), host)


def _record(asked: SlurmRun, job_dir: Path, run_dirs: list[Path]) -> JobRecord:
    spec, request, origin = asked.understood.spec, asked.request, Origin.here()
    runs = [
        JobRun(
            run_dir=str(run_dir),
            run_id=run_dir.name,
            spec=spec,
            sources=asked.understood.sources,
            notes=asked.understood.notes,
            force=tuple(sorted(request.force)),
        )
        for run_dir in run_dirs
    ]
    return JobRecord(
        job_dir=str(job_dir),
        name=job_name(asked.label),
        what="run",
        subject=str(job_dir),
        nnodes=asked.nnodes,
        gpus_per_node=0 if spec.gpu_type.is_cpu else min(spec.num_gpus, spec.gpus_per_node),
        runs=tuple(runs),
        launch=launch_record(request, asked.nnodes),
        gate=request.gate.record,
        results_dir=str(asked.results),
        slurm=asked.slurm.options,
        command=origin.command,
        created_at=origin.created_at,
        mbr_perf=origin.mbr_perf,
    )


def job_name(label: str) -> str:
    """What Slurm calls the job: only what a batch file can hold, the rest as ``-``."""
    safe = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in label)
    return f"mbr-perf.{safe}"[:64]
