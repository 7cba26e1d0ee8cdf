"""What was planned and written down, as `mbr-perf run` understands a request: nothing is resolved or judged again."""

from pathlib import Path

from harness.launch.environment import Host
from harness.launch.execute import LAUNCHERS
from harness.launch.rendezvous import Nodes
from harness.launch.request import LaunchRequest
from harness.records.night import PlannedCase
from harness.records.sweep import PlannedCell, SweepLaunch
from harness.runner.understanding import Understood
from harness.spec.effective import effective_recompute, settled_implementation
from harness.spec.software import Software


def launch_request(
    planned: PlannedCell | PlannedCase,
    launch: SweepLaunch,
    *,
    run_dir: Path,
    host: Host,
    nodes: Nodes,
    replay_from: Path | None,
) -> LaunchRequest:
    """One run of a planned cell or case, whose ``spec`` is there."""
    assert planned.spec is not None  # it is to run
    return LaunchRequest(
        spec=planned.spec,
        run_dir=run_dir,
        host=host,
        nodes=nodes,
        pass_env=launch.pass_env,
        timeout_s=launch.timeout_s,
        hang_timeout_s=launch.hang_timeout_s,
        sample_interval_ms=launch.sample_interval_ms,
        replay_from=replay_from,
    )


def understood_plan(
    planned: PlannedCell | PlannedCase, launcher: str, request: LaunchRequest, software: Software
) -> Understood:
    """As :func:`understand` leaves it. BadRequestError where the launch cannot be planned."""
    spec = request.spec
    return Understood(
        spec=spec,
        sources=planned.sources,
        notes=planned.notes,
        findings=planned.findings,
        effective=effective_recompute(spec, settled_implementation(spec), software),
        software=software,
        plan=LAUNCHERS[launcher](request),
        host=request.host,
    )
