"""One run: its requirements, its folder, and the verdict."""

from pathlib import Path

from harness.errors import BadRequestError, ExitCode
from harness.judging.compare import compare_runs, find_reference
from harness.judging.gate import run_outcome
from harness.launch.plan import LaunchPlan
from harness.records import store
from harness.records.goldens import GateOptions
from harness.records.store import RECORD, new_run_dir
from harness.run.launched import Ran
from harness.run.megatron_answer import megatron_finding
from harness.run.show import Display
from harness.run.understanding import RunRequest, Understood, rule_problem
from harness.showing.terminal import show_stopped


def require_megatron(understood: Understood, plan: LaunchPlan) -> None:
    """Raise if the installed megatron-core refuses the configuration, before GPUs are taken.

    Not asked for CPU runs, nor where Megatron-Bridge makes its own configuration.
    """
    if understood.spec.gpu_type.is_cpu or understood.spec.engine is not None:
        return
    variables = {variable.name: variable.value for variable in plan.env}
    finding = megatron_finding(understood.spec, understood.software, understood.host, variables)
    if finding.blocks:
        raise rule_problem(finding)


def run_folder(request: RunRequest) -> Path:
    """Return a folder without files of another run's ranks, which would count as this run's."""
    if request.run_dir is None:
        return new_run_dir(store.results_dir(request.results_dir), request.asked.job_name)
    if (request.run_dir / RECORD).exists() or any((request.run_dir / "ranks").glob("rank_*")):
        raise BadRequestError(f"{request.run_dir} already holds a run", remedy="name a new folder")
    try:
        for folder in ("ranks", "logs"):
            (request.run_dir / folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadRequestError(
            f"--run_dir {request.run_dir}: cannot make the folder: {error.strerror}", remedy="name a writable folder"
        ) from error
    return request.run_dir


def judge(runs: list[Ran], gate: GateOptions, results_dir: Path | None, display: Display) -> ExitCode:
    """Judge the runs of one request together and print the report. If the last run failed, judge only that run."""
    records, last = [run.record for run in runs], runs[-1]
    judged = records if last.record.status == "ok" else [last.record]
    try:
        search = find_reference(None, last.record, gate, results_dir)
        metrics, comparison = compare_runs(judged, search, gate)
    except BadRequestError as error:
        raise BadRequestError(str(error), remedy=f"the run is kept in {last.run_dir}") from error
    fail_on_improvement = gate.fail_on_improvement
    verdict = run_outcome(last.record.status, comparison, fail_on_improvement=fail_on_improvement, signal=last.signal)
    if last.signal is not None and not display.as_json:
        num_steps = min((len(rank.steps) for rank in last.record.ranks), default=0)
        of = f"{num_steps} of {last.record.spec.measure.max_steps} steps done"
        show_stopped(f"{last.record.spec.recipe}, {of}", verdict[1], last.run_dir)
        return verdict[1]
    display.result(last.record, metrics, comparison, verdict, last.run_dir, run_ids=[r.run_id for r in records])
    return verdict[1]
