"""One run of a cell, as `mbr-perf run` would do it, from what the sweep's plan holds."""

from dataclasses import dataclass
from pathlib import Path

from harness.errors import BadRequestError, raise_all
from harness.launch.environment import Host
from harness.launch.plan import LaunchPlan
from harness.launch.rendezvous import Nodes, local_ranks
from harness.recipes.problems import Problems
from harness.records.goldens import find_golden
from harness.records.sweep import PlannedCell, SweepLaunch, SweepPlan
from harness.records.sweeps import SWEEP, read_sweep, run_dir_of, run_id_of
from harness.runner.launched import Launch
from harness.runner.machine import require_machine, software_for
from harness.runner.planned_launch import launch_request, understood_plan
from harness.runner.sweep.attempts import Place
from harness.runner.understanding import Understood, rule_problem
from harness.spec.effective import settled_implementation
from harness.spec.rules.check import check
from harness.spec.software import Software


def require_startable(plan: SweepPlan, host: Host, node_rank: int = 0) -> None:
    """BadRequestError, everything at once, where runs of the plan could not start on this machine. Starts nothing."""
    problems = Problems()
    for cell in plan.cells:
        if cell.fate != "run" or cell.spec is None:
            continue
        with problems.collecting():
            understood_cell(plan, (cell.index, 0), host, Path("RUN"), node_rank)
        if plan.launch.launcher != "replay":
            with problems.collecting():
                require_machine(cell.spec, host, local_ranks(cell.spec, nodes_of(plan.launch)), plan.software)
        with problems.collecting():
            golden = plan.gate.golden_values_path
            find_golden(cell.spec, Path(golden) if golden else None)
    problems.raise_if_any()


@dataclass(frozen=True)
class Meeting:
    """Where the nodes of a sweep meet, as said anew; None: as its plan says."""

    master_addr: str | None = None
    master_port: int | None = None


def meeting_at(plan: SweepPlan, meeting: Meeting) -> SweepPlan:
    """The plan with the address and the port that were said anew."""
    said = {name: value for name, value in vars(meeting).items() if value is not None}
    return plan.model_copy(update={"launch": plan.launch.model_copy(update=said)})


def nodes_of(launch: SweepLaunch, node_rank: int = 0) -> Nodes:
    """One of the nodes of a sweep."""
    return Nodes(launch.nnodes, node_rank, launch.master_addr, launch.master_port)


def understood_cell(plan: SweepPlan, place: Place, host: Host, run_dir: Path, node_rank: int = 0) -> Understood:
    """A cell as `mbr-perf run` understands a request. BadRequestError where its launch cannot be planned."""
    cell, launch = plan.cells[place[0]], plan.launch
    request = launch_request(
        cell,
        launch,
        run_dir=run_dir,
        host=host,
        nodes=nodes_of(launch, node_rank),
        replay_from=_recorded(launch, cell, place[1]),
    )
    understood = understood_plan(cell, launch.launcher, request, _software(plan, host))
    if plan.software is None:
        _require_legal(understood)
    return understood


def _software(plan: SweepPlan, host: Host) -> Software:
    """What the cells were judged for; where that was left to the machine that runs them, what this one has."""
    if plan.software is not None or plan.launch.launcher == "replay":
        return plan.software or Software()
    return software_for(plan.gpu, host)[0]


def _require_legal(understood: Understood) -> None:
    forced = frozenset(finding.id for finding in understood.findings if finding.overridden)
    env = {v.name: v.value for v in understood.plan.env} if isinstance(understood.plan, LaunchPlan) else None
    spec = understood.spec
    findings = check(spec, understood.software, env=env, implementation=settled_implementation(spec), force=forced)
    raise_all([rule_problem(finding) for finding in findings if finding.blocks])


def launch_of(plan: SweepPlan, place: Place, host: Host, run_dir: Path, node_rank: int = 0) -> Launch:
    """What :func:`launched` takes."""
    understood = understood_cell(plan, place, host, run_dir, node_rank)
    return Launch(understood, run_dir, run_id_of(plan.sweep_id, *place), nodes_of(plan.launch, node_rank))


def _recorded(launch: SweepLaunch, cell: PlannedCell, repeat: int) -> Path | None:
    """The recorded run that is replayed: the folder given, or of a recorded sweep the run of an equal cell."""
    if launch.replay_from is None or not (Path(launch.replay_from) / SWEEP).is_file():
        return Path(launch.replay_from) if launch.replay_from else None
    recorded = read_sweep(launch.replay_from)
    twin = next((other for other in recorded.cells if other.planned.spec == cell.spec and other.runs), None)
    if twin is None:
        raise BadRequestError(
            f"{launch.replay_from}: holds no run of {cell.name}", remedy="replay a sweep of the same cells"
        )
    index = twin.planned.index
    found = run_dir_of(recorded.sweep_dir, index, repeat)
    return found if found.is_dir() else run_dir_of(recorded.sweep_dir, index, 0)
