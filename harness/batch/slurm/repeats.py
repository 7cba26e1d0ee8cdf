"""`mbr-perf run --launcher slurm`: understood here, one job for all repeats, judged here as any run is."""

from dataclasses import replace
from pathlib import Path

from harness.batch.launches import num_nodes
from harness.batch.repeats import entry_of, launch_words, require_one_folder
from harness.batch.slurm.collecting import committed_runs, drop_unstarted, task_runs
from harness.batch.slurm.showing import JobDisplay
from harness.batch.slurm.submission import JobRequest, hand_over, require_gpu_named
from harness.errors import BadRequestError, ExitCode, Problems
from harness.judging.gate import status_exit_code
from harness.launch.environment import this_host
from harness.launch.plan import Nodes
from harness.launch.slurm.job import option_problems
from harness.records.goldens import find_golden
from harness.records.job import JobRecord, JobRun, SlurmRequest
from harness.records.store import results_dir
from harness.run.experiment import judge, run_folder
from harness.run.launched import Ran
from harness.run.predicting.prediction import cached_prediction
from harness.run.understanding import RunRequest, Understood, looked_over, understand

_SOMEWHERE = "HEAD"  # the first node is known in the job only


def dry_run_on_slurm(request: RunRequest, slurm: SlurmRequest, display: JobDisplay) -> None:
    """Print the batch file that would be submitted. Writes and submits nothing."""
    understood = _understood(request, slurm)
    runs = results_dir(request.results_dir).absolute() / "runs"
    names = ["RUN"] if request.repeats == 1 else [f"RUN{number}" for number in range(1, request.repeats + 1)]
    folders = [runs / name for name in names] if request.run_dir is None else [request.run_dir.absolute()]
    job = _job(request, slurm, understood, folders).checked(understood.host)
    display.plan(understood, cached_prediction(understood), job)


def run_on_slurm(request: RunRequest, slurm: SlurmRequest, display: JobDisplay) -> ExitCode:
    """Submit one job for all repeats and, unless it is to be left alone, wait for it and judge it."""
    understood = _understood(request, slurm)
    _job(request, slurm, understood, [Path("RUN").absolute()] * request.repeats).checked(understood.host)
    display.understood(understood)
    absolute = replace(request, results_dir=results_dir(request.results_dir).absolute())
    folders = [run_folder(absolute).absolute() for _ in range(request.repeats)]

    def refused(job: JobRecord, error: BadRequestError) -> BadRequestError:
        drop_unstarted(job.runs)
        return error

    asked = _job(request, slurm, understood, folders)
    return hand_over(asked, slurm, understood.host, display, lambda job: judge_runs(job, display), refused)


def judge_runs(job: JobRecord, display: JobDisplay) -> ExitCode:
    """The verdict on the runs that a job left. A night judges its own cases."""
    filled_by = next((task.filled_by for task in task_runs(job) if task.filled_by), "")
    if filled_by:
        told = f"{job.job_dir}: left no run, its folder holds that of job {filled_by}"
        raise BadRequestError(told, remedy=f"mbr-perf jobs wait {filled_by} judges that one")
    runs = [Ran(record, Path(run.run_dir), None) for run, record in committed_runs(job)]
    if job.what == "run":
        results = Path(job.results_dir) if job.results_dir else None
        return judge(runs, job.gate, results, display.run)
    display.of_a_night(job, [run.record for run in runs])
    return max(status_exit_code(run.record.status) for run in runs)


def _understood(request: RunRequest, slurm: SlurmRequest) -> Understood:
    """As `mbr-perf run` understands it, for nodes that are not this machine. BadRequestError with every problem."""
    problems = Problems()
    require_gpu_named(request.asked.gpu)
    with problems.collecting():
        require_one_folder(request)
    problems.found += option_problems(slurm.options, request.launch.pass_env)
    host, port = this_host(), request.nodes.master_port
    launch = request.launch.model_copy(update={"launcher": "torchrun"})
    with problems.collecting():
        nnodes = num_nodes(looked_over(request, host)[0].spec)
        nodes = Nodes(nnodes, 0, _SOMEWHERE, port) if nnodes > 1 else Nodes(master_port=port)
        understood = understand(replace(request, launch=launch, nodes=nodes), host, Path("RUN"))
        find_golden(understood.spec, request.gate.golden_values_path)
    problems.raise_if_any()
    return understood


def _job(request: RunRequest, slurm: SlurmRequest, understood: Understood, folders: list[Path]) -> JobRequest:
    entry = entry_of(request, understood)
    return JobRequest(
        what="run",
        label=entry.name,
        specs=(entry.spec,),
        runs=tuple(
            JobRun(
                run_dir=str(folder),
                run_id=folder.name,
                spec=entry.spec,
                sources=entry.sources,
                notes=entry.notes,
                force=tuple(sorted(request.force)),
            )
            for folder in folders
        ),
        launch=launch_words(request, understood.launch.nodes.nnodes),
        gate=request.gate.from_root,
        options=slurm.options,
        results=results_dir(request.results_dir).absolute(),
    )
