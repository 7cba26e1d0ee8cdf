"""One run of a night's case, as `mbr-perf run` would do it, from what the night's plan holds."""

from pathlib import Path

from harness.errors import BadRequestError
from harness.launch.environment import Host
from harness.launch.rendezvous import Nodes
from harness.records.job import JobRun
from harness.records.night import NightPlan, PlannedCase
from harness.records.nights import CASES, run_dir_of, run_id_of
from harness.runner.launched import Launch
from harness.runner.night.rounds import DueRun, NightAtWork
from harness.runner.planned_launch import launch_request, understood_plan
from harness.runner.understanding import Understood
from harness.spec.software import Software


def launch_of(night: NightAtWork, due: DueRun) -> Launch:
    """What :func:`launched` takes, in the run's own folder. BadRequestError where the launch cannot be planned."""
    run_dir = run_dir_of(night.night_dir, due.case.name, due.number)
    understood = understood_case(night.plan, due.case, due.number, night.host, run_dir)
    return Launch(understood, run_dir, run_id_of(night.plan.night_id, due.case.name, due.number), Nodes())


def job_run(night: NightAtWork, due: DueRun) -> JobRun:
    """The run as a job of a cluster takes it."""
    case = due.case
    assert case.spec is not None  # it is to run
    return JobRun(
        run_dir=str(run_dir_of(night.night_dir, case.name, due.number)),
        run_id=run_id_of(night.plan.night_id, case.name, due.number),
        spec=case.spec,
        sources=case.sources,
        notes=case.notes,
        force=tuple(finding.id for finding in case.findings if finding.overridden),
        prediction=case.prediction,
        no_prediction="" if case.prediction else case.no_prediction,
    )


def software_of(plan: NightPlan, case: PlannedCase) -> Software:
    """What the case was judged for."""
    return plan.software.get(case.spec.gpu, Software()) if case.spec else Software()


def understood_case(
    plan: NightPlan, case: PlannedCase, number: int, host: Host, run_dir: Path, nodes: Nodes | None = None
) -> Understood:
    """A case as `mbr-perf run` understands a request. BadRequestError where its launch cannot be planned."""
    assert case.spec is not None  # it is to run
    launch = plan.launch
    if case.timeout_s is not None:
        launch = launch.model_copy(update={"timeout_s": case.timeout_s})
    recorded = _recorded(launch.replay_from, case, number)
    request = launch_request(case, launch, run_dir=run_dir, host=host, nodes=nodes or Nodes(), replay_from=recorded)
    return understood_plan(case, launch.launcher, request, software_of(plan, case))


def _recorded(source: str | None, case: PlannedCase, number: int) -> Path | None:
    """The recorded run that is replayed: of a recorded night the run of that number or its last one, else the folder."""
    if source is None or not (Path(source) / CASES).is_dir():
        return Path(source) if source else None
    runs = sorted((Path(source) / CASES / case.name).glob("[0-9]*"), key=lambda path: (len(path.name), path.name))
    runs = [path for path in runs if path.name.isdecimal()]
    if not runs:
        raise BadRequestError(f"{source}: holds no run of {case.name}", remedy="replay a night of the same cases")
    return next((path for path in runs if path.name == str(number)), runs[-1])
