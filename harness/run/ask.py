"""The command `run`, with its option --ab."""

from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.commands import takes
from harness.cli.options import (
    ClusterLaunchOptions,
    EngineOptions,
    ExperimentOptions,
    JudgeOptions,
    LaunchOptions,
    RunOutput,
    option,
    options,
)

if TYPE_CHECKING:
    from harness.measure.experiment import Display
    from harness.measure.understanding import RunRequest


# fmt: off
@options("Launching")
class AbOptions:
    """A second request to run beside the first."""

    ab: Annotated[list[str] | None, option("NAME=VALUE", "Run the request (A), and with this value (B), as a sweep of "
        "two cells. NAME: as for sweep --over, e.g. env.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.")] = None
# fmt: on


def _dry_run(request: "RunRequest", display: "Display") -> None:
    from harness.launch.environment import this_host
    from harness.launch.plan import LaunchPlan
    from harness.measure.prediction import cached_prediction
    from harness.measure.understanding import understand
    from harness.records.folders import results_dir
    from harness.records.goldens import find_golden

    run_dir = request.run_dir or results_dir(request.results_dir) / "runs" / "RUN"
    understood = understand(request, this_host(), run_dir, dryrun=True)
    if request.gate.golden_values_path and isinstance(understood.plan, LaunchPlan):
        find_golden(understood.spec, request.gate.golden_values_path)  # refuses what the run would refuse
    display.plan(understood, cached_prediction(understood.spec, understood.software, understood.host))


@takes(ExperimentOptions, EngineOptions, JudgeOptions, LaunchOptions, ClusterLaunchOptions, AbOptions, RunOutput)
def run(
    asked: ExperimentOptions,
    engine: EngineOptions,
    judge: JudgeOptions,
    launch: LaunchOptions,
    cluster: ClusterLaunchOptions,
    second: AbOptions,
    output: RunOutput,
) -> None:
    """Train with real megatron-core, measure every rank, and judge the result against golden values.

    Without a GPU mbr-perf trains the recipe's cpu operating point: the same model at a size for two cores.

    Exit codes: 0 passed, 2 wrong request, 3 failed, 4 out of memory, 5 regression, 6 inconclusive.
    """
    from harness.batch.repeats import run_experiment
    from harness.cli.requests import is_for_cluster, nodes_said, run_request
    from harness.measure.experiment import Display

    on_cluster = None
    if is_for_cluster(launch, cluster):
        from harness.cli.cluster import cluster_request

        on_cluster = cluster_request(launch, cluster, nodes_said(launch, launch.replay_from))
    if second.ab:
        from harness.run.ab import run_ab

        raise typer.Exit(int(run_ab(second.ab, asked, engine, judge, launch, output)))
    request = run_request(asked, judge, launch, engine)
    display = Display(as_json=output.as_json, explain=output.explain)
    if on_cluster is not None:
        from harness.batch.repeats import dry_run_on_cluster, run_on_cluster
        from harness.cluster.showing import JobDisplay

        if output.dryrun:
            dry_run_on_cluster(request, on_cluster, JobDisplay(display))
            return
        raise typer.Exit(int(run_on_cluster(request, on_cluster, JobDisplay(display))))
    if output.dryrun:
        _dry_run(request, display)
        return
    raise typer.Exit(int(run_experiment(request, display)))
