"""One run from request to exit code."""

from dataclasses import dataclass
from pathlib import Path

from harness.analysis.compare import compare_runs, find_reference
from harness.analysis.outcome import run_outcome, status_exit_code
from harness.errors import BadRequestError, ExitCode
from harness.launch.disk import full_disk_told
from harness.launch.environment import this_host
from harness.launch.execute import execute
from harness.launch.ownership import claim
from harness.launch.plan import LaunchPlan
from harness.launch.rendezvous import Nodes
from harness.launch.replay import ReplayPlan
from harness.records.atomic import write_atomically
from harness.records.collect import collect
from harness.records.goldens import find_golden
from harness.records.launch import LaunchOutcome
from harness.records.run import REPLAYED, RunRecord
from harness.records.store import RECORD, new_run_dir, results_dir, write_record
from harness.runner.machine import require_machine
from harness.runner.megatron_says import megatron_finding
from harness.runner.other_nodes import wait_for_other_nodes
from harness.runner.outcome_of_ranks import built_otherwise, doubts, status_of
from harness.runner.placement import placed
from harness.runner.prediction import RunPrediction, cached_prediction, predicting
from harness.runner.provenance import Clock, provenance
from harness.runner.request import RunRequest
from harness.runner.showing import Display
from harness.runner.understanding import Understood, rule_problem, understand


def dry_run(request: RunRequest, display: Display) -> None:
    """Print what would run. Writes and starts nothing."""
    run_dir = request.run_dir or results_dir(request.results_dir) / "runs" / "RUN"
    understood = understand(request, this_host(), run_dir)
    display.plan(understood, cached_prediction(understood))


@dataclass(frozen=True)
class _Ran:
    """One launch: its committed record, where it lies, and the signal that interrupted it."""

    record: RunRecord
    run_dir: Path
    signal: int | None


def run_experiment(request: RunRequest, display: Display) -> ExitCode:
    """Train ``request.repeats`` times, judge the runs together, print the answer; the exit code is the verdict's."""
    host = this_host()
    understood = understand(request, host, request.run_dir or Path("RUN"))
    if isinstance(understood.plan, LaunchPlan):
        require_machine(understood.spec, host, understood.plan.num_local_ranks)
        _require_megatron(understood, understood.plan)
        find_golden(understood.spec, request.gate.golden_values_path)  # one that cannot be read is told before the run
    _require_folder(request)
    display.understood(understood)
    runs: list[_Ran] = []
    for _ in range(request.repeats):
        runs.append(_one_run(request, display))
        if runs[-1].record.status != "ok":
            break
    if request.nodes.node_rank > 0:
        return status_exit_code(runs[-1].record.status, runs[-1].signal)
    return _judge(request, runs, display)


def _require_megatron(understood: Understood, plan: LaunchPlan) -> None:
    """The installed megatron-core accepts the configuration; asked before GPUs are taken, which a CPU run does not."""
    if understood.spec.gpu_type.is_cpu:
        return
    variables = {variable.name: variable.value for variable in plan.env}
    said = megatron_finding(understood.spec, understood.software, understood.host, variables)
    if said.blocks:
        raise rule_problem(said)


def _require_folder(request: RunRequest) -> None:
    if request.nodes.nnodes > 1 and request.run_dir is None:
        raise BadRequestError(
            f"--nnodes {request.nodes.nnodes} needs a run folder that all nodes see",
            remedy="give every node the same --run_dir on a shared file system",
        )
    if request.run_dir is not None and request.repeats > 1:
        raise BadRequestError("--run_dir names one run, --repeats makes several", remedy="leave one of them out")


def _one_run(request: RunRequest, display: Display) -> _Ran:
    """Launch once and, on the first node, commit the record; whatever ends the launch, what ranks measured is on disk.

    RunFailedError when the disk has no room for it.
    """
    clock = Clock.start()
    run_dir = _run_folder(request)
    understood = understand(request, this_host(), run_dir)
    with full_disk_told(run_dir):
        write_atomically(run_dir / "spec.json", understood.spec.model_dump_json(indent=1) + "\n")
        write_atomically(run_dir / _plan_name(request.nodes), understood.plan.render())
        if request.nodes.node_rank == 0:
            claim(run_dir)
    with predicting(understood, request.nodes) as prediction:
        with display.progress(understood) as on_progress:
            outcome = execute(understood.plan, on_progress=on_progress)
        foretold = prediction(outcome.signal)
    late = wait_for_other_nodes(run_dir, request.nodes) if request.nodes.node_rank == 0 else ()
    record = _record(understood, clock, run_dir, outcome, late, foretold)
    if request.nodes.node_rank == 0:
        with full_disk_told(run_dir):
            write_record(run_dir, record)
    return _Ran(record, run_dir, outcome.signal)


def _plan_name(nodes: Nodes) -> str:
    """The first node's plan has the plain name; nodes share the folder."""
    return f"plan_node_{nodes.node_rank:03d}.txt" if nodes.node_rank else "plan.txt"


def _run_folder(request: RunRequest) -> Path:
    """A folder without ranks of another run: what they left would be read as this run's."""
    if request.run_dir is None:
        recipe = Path(request.asked.model_recipe_name).stem
        return new_run_dir(results_dir(request.results_dir), recipe)
    if (request.run_dir / RECORD).exists() or any((request.run_dir / "ranks").glob("rank_*")):
        raise BadRequestError(f"{request.run_dir} already holds a run", remedy="name a new folder")
    try:
        for folder in ("ranks", "logs"):
            (request.run_dir / folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadRequestError(
            f"--run_dir {request.run_dir}: cannot be made: {error.strerror}", remedy="name a writable folder"
        ) from error
    return request.run_dir


def _record(
    understood: Understood,
    clock: Clock,
    run_dir: Path,
    outcome: LaunchOutcome,
    late_nodes: tuple[str, ...],
    foretold: RunPrediction,
) -> RunRecord:
    spec = understood.spec
    collected = collect(run_dir, spec.num_gpus)
    ranks = placed(collected.ranks, spec)
    status, failure = status_of(outcome, ranks)
    otherwise = built_otherwise(understood.effective, ranks)
    return RunRecord(
        run_id=run_dir.name,
        status=status,
        spec=spec,
        sources=understood.sources,
        fingerprint=spec.fingerprint,
        effective=understood.effective,
        ranks=ranks,
        nodes=collected.nodes,
        failure=failure,
        findings=understood.findings,
        suspect=(*doubts(collected.nodes, ranks), *([otherwise] if otherwise else [])),
        notes=(*understood.notes, *_replay_note(understood), *outcome.notes, *late_nodes, *collected.notes),
        prediction=foretold.prediction.record() if foretold.prediction else None,
        no_prediction=foretold.reason,
        provenance=provenance(clock, understood.plan, ranks, collected.nodes, understood.host.hostname),
    )


def _replay_note(understood: Understood) -> tuple[str, ...]:
    plan = understood.plan
    return (f"{REPLAYED}{plan.source}: nothing was measured",) if isinstance(plan, ReplayPlan) else ()


def _judge(request: RunRequest, runs: list[_Ran], display: Display) -> ExitCode:
    records, last = [run.record for run in runs], runs[-1]
    judged = records if last.record.status == "ok" else [last.record]
    try:
        search = find_reference(None, last.record, request.gate, request.results_dir)
        metrics, comparison = compare_runs(judged, search, request.gate)
    except BadRequestError as error:
        raise BadRequestError(str(error), remedy=f"the run itself is kept in {last.run_dir}") from error
    fail_on_improvement = request.gate.fail_on_improvement
    verdict = run_outcome(last.record.status, comparison, fail_on_improvement=fail_on_improvement, signal=last.signal)
    display.result(last.record, metrics, comparison, verdict, last.run_dir, run_ids=[r.run_id for r in records])
    return verdict[1]
