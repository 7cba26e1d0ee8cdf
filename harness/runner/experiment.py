"""One run from request to exit code."""

from pathlib import Path

from harness.analysis.compare import compare_runs, find_reference
from harness.analysis.outcome import run_outcome
from harness.errors import BadRequestError, ExitCode, HarnessError
from harness.launch.environment import this_host
from harness.launch.execute import execute
from harness.launch.plan import LaunchPlan
from harness.records.atomic import write_atomically
from harness.records.collect import collect
from harness.records.launch import LaunchOutcome
from harness.records.run import RunRecord
from harness.records.store import new_run_dir, results_dir, write_record
from harness.runner.machine import require_machine
from harness.runner.megatron_says import megatron_finding
from harness.runner.outcome_of_ranks import built_otherwise, doubts, status_of
from harness.runner.placement import placed
from harness.runner.provenance import Clock, provenance
from harness.runner.request import RunRequest
from harness.runner.showing import Display
from harness.runner.understanding import Understood, rule_problem, understand


def dry_run(request: RunRequest, display: Display) -> None:
    """Print what would run. Writes and starts nothing."""
    run_dir = request.run_dir or results_dir(request.results_dir) / "runs" / "RUN"
    display.plan(understand(request, this_host(), run_dir))


def run_experiment(request: RunRequest, display: Display) -> ExitCode:
    """Train ``request.repeats`` times, judge the runs together, print the answer; the exit code is the verdict's."""
    host = this_host()
    understood = understand(request, host, request.run_dir or Path("RUN"))
    if isinstance(understood.plan, LaunchPlan):
        require_machine(understood.spec, host, understood.plan.num_local_ranks)
        _require_megatron(understood)
    _require_folder(request)
    display.understood(understood)
    records: list[tuple[RunRecord, Path, int | None]] = []
    for _ in range(request.repeats):
        records.append(_one_run(request, display))
        if records[-1][0].status != "ok":
            break
    if request.nodes.node_rank > 0:
        return ExitCode.OK if records[-1][0].status == "ok" else ExitCode.RUN_FAILED
    return _judge(request, records, display)


def _require_megatron(understood: Understood) -> None:
    """The installed megatron-core accepts the configuration; asked before GPUs are taken, which a CPU run does not."""
    if understood.spec.gpu_type.is_cpu:
        return
    said = megatron_finding(understood.spec, understood.software, understood.host)
    if said is not None and said.blocks:
        raise rule_problem(said)


def _require_folder(request: RunRequest) -> None:
    if request.nodes.nnodes > 1 and request.run_dir is None:
        raise BadRequestError(
            f"--nnodes {request.nodes.nnodes} needs a run folder that all nodes see",
            remedy="give every node the same --run_dir on a shared file system",
        )
    if request.run_dir is not None and request.repeats > 1:
        raise BadRequestError("--run_dir names one run, --repeats makes several", remedy="leave one of them out")


def _one_run(request: RunRequest, display: Display) -> tuple[RunRecord, Path, int | None]:
    """Launch once and commit the record; whatever ends the launch, what the ranks measured is on disk."""
    clock = Clock.start()
    run_dir = _run_folder(request)
    understood = understand(request, this_host(), run_dir)
    write_atomically(run_dir / "spec.json", understood.spec.model_dump_json(indent=1) + "\n")
    write_atomically(run_dir / "plan.txt", understood.plan.render())
    with display.progress(understood) as on_progress:
        outcome = execute(understood.plan, on_progress=on_progress)
    if request.nodes.node_rank > 0:
        return _record(understood, clock, run_dir, outcome), run_dir, outcome.signal
    record = _record(understood, clock, run_dir, outcome)
    write_record(run_dir, record)
    return record, run_dir, outcome.signal


def _run_folder(request: RunRequest) -> Path:
    if request.run_dir is None:
        recipe = Path(request.asked.model_recipe_name).stem
        return new_run_dir(results_dir(request.results_dir), recipe)
    if (request.run_dir / "record.json").exists():
        raise BadRequestError(f"{request.run_dir} already holds a run", remedy="name a new folder")
    for folder in ("ranks", "logs"):
        (request.run_dir / folder).mkdir(parents=True, exist_ok=True)
    return request.run_dir


def _record(understood: Understood, clock: Clock, run_dir: Path, outcome: LaunchOutcome) -> RunRecord:
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
        suspect=(*doubts(collected.nodes), *([otherwise] if otherwise else [])),
        notes=(*understood.notes, *collected.notes),
        provenance=provenance(clock, understood.plan, ranks, collected.nodes, understood.host.hostname),
    )


def _judge(request: RunRequest, runs: list[tuple[RunRecord, Path, int | None]], display: Display) -> ExitCode:
    records = [record for record, _, _ in runs]
    last, run_dir, signal = runs[-1]
    try:
        search = find_reference(None, last, request.gate, request.results_dir)
    except HarnessError as error:
        raise type(error)(error.message, remedy=f"{error.remedy}; the run itself is kept in {run_dir}") from error
    metrics, comparison = compare_runs(records if last.status == "ok" else [last], search, request.gate)
    verdict = run_outcome(last.status, comparison, fail_on_improvement=request.gate.fail_on_improvement, signal=signal)
    display.result(last, metrics, comparison, verdict, run_dir, num_runs=len(records))
    return verdict[1]
