"""`mbr-perf run`: the repeats of one request, on this machine or as one job. The request is resolved once."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from harness.cluster.collecting import runs_of
from harness.cluster.showing import JobDisplay
from harness.cluster.submission import JobRequest, hand_over, require_accepted, require_gpu_named
from harness.errors import BadRequestError, ExitCode, Problems
from harness.judge.gate import status_exit_code
from harness.launch.environment import this_host
from harness.launch.jobs import option_problems
from harness.launch.plan import LaunchPlan, Nodes
from harness.launch.required import require_machine
from harness.measure.experiment import Display, judge, require_megatron, run_folder
from harness.measure.launched import Ran, launched
from harness.measure.prediction import cached_prediction
from harness.measure.understanding import RunRequest, Understood, settle, understand
from harness.records.batches import BatchLaunch
from harness.records.folders import results_dir
from harness.records.goldens import find_golden
from harness.records.job import ClusterRequest, JobRecord, JobRun
from harness.units import command_text


def run_experiment(request: RunRequest, display: Display) -> ExitCode:
    """Train ``request.repeats`` times or until a run fails, judge the runs together, and print the report."""
    host = this_host()
    understood = understand(request, host, request.run_dir or Path("RUN"))
    if isinstance(understood.plan, LaunchPlan):
        require_machine(understood.spec, host, understood.plan.num_local_ranks, understood.software)
        require_megatron(understood, understood.plan)
        find_golden(understood.spec, request.gate.golden_values_path)  # reports an unreadable golden before the run
    if request.nodes.nnodes > 1 and request.run_dir is None:
        raise BadRequestError(
            f"--nnodes {request.nodes.nnodes} needs a run folder that all nodes see",
            remedy="give every node the same --run_dir on a shared file system",
        )
    require_one_folder(request)
    display.understood(understood)
    ran: list[Ran] = []
    # A signal between two runs ends this process as usual: finished runs are committed.
    while len(ran) < request.repeats and (not ran or (ran[-1].record.status == "ok" and ran[-1].signal is None)):
        run_dir = run_folder(request)
        here, warn = understood.in_folder(run_dir), partial(display.warn_of_misfit, understood)
        ran.append(launched(here, run_dir.name, progress=display.progress(here), before_start=warn))
    if request.nodes.node_rank > 0:
        return status_exit_code(ran[-1].record.status, ran[-1].signal)
    return judge(ran, request.gate, request.results_dir, display)


def launch_words(request: RunRequest, nnodes: int) -> BatchLaunch:
    """How each run is launched, in the words of a plan on disk."""
    how = request.launch.model_dump() | {"launcher": "torchrun", "replay_from": None}
    return BatchLaunch(**how, nnodes=nnodes, master_port=request.nodes.master_port)


def require_one_folder(request: RunRequest) -> None:
    """Raise BadRequestError if the request names one folder for several runs."""
    if request.run_dir is not None and request.repeats > 1:
        raise BadRequestError(
            "--run_dir names the folder of one run, but --repeats makes several runs", remedy="omit one of the two"
        )


_SOMEWHERE = "HEAD"  # only the job knows its first node


def dry_run_on_cluster(request: RunRequest, cluster: ClusterRequest, display: JobDisplay) -> None:
    """Print the job's file that would be submitted. Writes and submits nothing."""
    understood = _understood(request, cluster)
    runs = results_dir(request.results_dir).absolute() / "runs"
    names = ["RUN"] if request.repeats == 1 else [f"RUN{number}" for number in range(1, request.repeats + 1)]
    folders = [runs / name for name in names] if request.run_dir is None else [request.run_dir.absolute()]
    job = _job(request, cluster, understood, folders).checked(understood.host)
    predicted = cached_prediction(understood.spec, understood.software, understood.host)
    display.run.plan(understood, predicted, job)


def run_on_cluster(request: RunRequest, cluster: ClusterRequest, display: JobDisplay) -> ExitCode:
    """Submit one job for all repeats. Wait for it and judge it, unless the request says not to wait."""
    understood = _understood(request, cluster)
    folders = [Path("RUN").absolute()] * request.repeats
    require_accepted(_job(request, cluster, understood, folders), cluster, understood.host)
    display.run.understood(understood)
    absolute = replace(request, results_dir=results_dir(request.results_dir).absolute())
    folders = [run_folder(absolute).absolute() for _ in range(request.repeats)]
    asked = _job(request, cluster, understood, folders)
    return hand_over(asked, cluster, understood.host, display, lambda job: judge_runs(job, display))


def judge_runs(job: JobRecord, display: JobDisplay) -> ExitCode:
    """Judge the runs of a job and return the exit code."""
    found = runs_of(job)
    if found.filled_by:
        problem = f"{job.job_dir}: the folder of its run now holds the run of job {found.filled_by}"
        raise BadRequestError(problem, remedy=f"judge that run with {command_text('jobs', 'wait', found.filled_by)}")
    runs = [Ran(record, Path(run.run_dir), None) for run, record in found.committed]
    return judge(runs, job.gate, Path(job.results_dir) if job.results_dir else None, display.run)


def _understood(request: RunRequest, cluster: ClusterRequest) -> Understood:
    """Resolve the request for nodes other than this machine. BadRequestError with every problem."""
    problems = Problems()
    require_gpu_named(request.asked.gpu)
    problems.tried(lambda: require_one_folder(request))
    problems.found += option_problems(cluster.options, request.launch.pass_env)
    host, port = this_host(), request.nodes.master_port
    launch = request.launch.model_copy(update={"launcher": "torchrun"})
    with problems.collecting():
        nnodes = settle(request, host, takes_secrets=True).spec.num_nodes
        nodes = Nodes(nnodes, 0, _SOMEWHERE, port) if nnodes > 1 else Nodes(master_port=port)
        understood = understand(replace(request, launch=launch, nodes=nodes), host, Path("RUN"))
        find_golden(understood.spec, request.gate.golden_values_path)
    problems.raise_if_any()
    return understood


def _job(request: RunRequest, cluster: ClusterRequest, understood: Understood, folders: list[Path]) -> JobRequest:
    spec, sources, notes = understood.spec, understood.sources, understood.notes
    force = tuple(sorted(request.force))
    runs = (
        JobRun(run_dir=str(folder), run_id=folder.name, spec=spec, sources=sources, notes=notes, force=force)
        for folder in folders
    )
    return JobRequest(
        what="run",
        label=request.asked.job_name,
        specs=(spec,),
        runs=tuple(runs),
        launch=launch_words(request, understood.launch.nodes.nnodes),
        gate=request.gate.from_root,
        options=cluster.options,
        results=results_dir(request.results_dir).absolute(),
    )
