"""One run of a cell, as `mbr-perf run` would do it, from what the sweep's plan holds."""

from pathlib import Path

from harness.errors import BadRequestError
from harness.launch.environment import Host
from harness.launch.execute import LAUNCHERS
from harness.launch.rendezvous import Nodes
from harness.launch.request import LaunchRequest
from harness.recipes.problems import Problems
from harness.records.goldens import find_golden
from harness.records.sweep import PlannedCell, SweepLaunch, SweepPlan
from harness.records.sweeps import SWEEP, read_sweep, run_dir_of
from harness.runner.launched import Launch
from harness.runner.machine import require_machine
from harness.runner.sweep_attempts import Place
from harness.runner.understanding import Understood
from harness.spec.effective import effective_recompute, settled_implementation
from harness.spec.software import Software


def require_startable(plan: SweepPlan, host: Host) -> None:
    """BadRequestError, everything at once, where runs of the plan could not start on this machine. Starts nothing."""
    problems = Problems()
    for cell in plan.cells:
        if cell.fate != "run" or cell.spec is None:
            continue
        with problems.collecting():
            understood_cell(plan, (cell.index, 0), host, Path("RUN"))
        if plan.launch.launcher != "replay":
            with problems.collecting():
                require_machine(cell.spec, host, cell.spec.num_gpus)
        with problems.collecting():
            golden = plan.gate.golden_values_path
            find_golden(cell.spec, Path(golden) if golden else None)
    problems.raise_if_any()


def understood_cell(plan: SweepPlan, place: Place, host: Host, run_dir: Path) -> Understood:
    """A cell as `mbr-perf run` understands a request. BadRequestError where its launch cannot be planned."""
    cell, launch = plan.cells[place[0]], plan.launch
    assert cell.spec is not None  # it is to run
    software = plan.software or Software()
    request = LaunchRequest(
        spec=cell.spec,
        run_dir=run_dir,
        host=host,
        nodes=Nodes(),
        pass_env=launch.pass_env,
        timeout_s=launch.timeout_s,
        hang_timeout_s=launch.hang_timeout_s,
        sample_interval_ms=launch.sample_interval_ms,
        replay_from=_recorded(launch, cell, place[1]),
    )
    return Understood(
        spec=cell.spec,
        sources=cell.sources,
        notes=cell.notes,
        findings=cell.findings,
        effective=effective_recompute(cell.spec, settled_implementation(cell.spec), software),
        software=software,
        plan=LAUNCHERS[launch.launcher](request),
        host=host,
    )


def launch_of(plan: SweepPlan, place: Place, host: Host, run_dir: Path, run_id: str) -> Launch:
    """What :func:`launched` takes."""
    return Launch(understood_cell(plan, place, host, run_dir), run_dir, run_id, Nodes())


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
