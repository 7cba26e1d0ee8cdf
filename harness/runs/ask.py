"""The `run` command, and its option --ab."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from harness.asking.options import ExperimentOptions, JudgeOptions, LaunchOptions, RunOutput, takes
from harness.asking.slurm_options import SlurmLaunchOptions

if TYPE_CHECKING:
    from harness.errors import ExitCode


@dataclass(frozen=True, kw_only=True)
class AbOptions:
    """A second request to run beside the first."""

    ab: Annotated[
        str | None,
        typer.Option(
            "--ab",
            metavar="NAME=VALUE",
            rich_help_panel="Launching",
            help="Run the request as it is (A) and with this value (B), interleaved with --repeats, and say how they "
            "differ. NAME as of sweep --over, e.g. env.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, whose A goes without.",
        ),
    ] = None


def run_ab(
    text: str,
    asked: ExperimentOptions,
    judge: JudgeOptions,
    launch: LaunchOptions,
    slurm: SlurmLaunchOptions,
    output: RunOutput,
) -> "ExitCode":
    """A and B as a sweep of its own; --run_dir names its folder. BadRequestError on Slurm."""
    from harness.asking.options import SweepNodes
    from harness.asking.requests import slurm_run_request
    from harness.batch.nodes import Meeting
    from harness.errors import BadRequestError, ExitCode
    from harness.launch.environment import this_host
    from harness.sweep.ab import AbDisplay, ab_request
    from harness.sweep.ask import SweepOptions, SweptOptions
    from harness.sweep.request import follower, sweep_request
    from harness.sweep.run import Sitting, dry_run_sweep, follow_sweep, start_sweep

    if launch.launcher == "slurm":
        raise BadRequestError(
            "--ab cannot be said with --launcher slurm", remedy=f"mbr-perf sweep --launcher slurm --over {text}"
        )
    slurm_run_request(launch, slurm)  # its options without that launcher are refused
    if output.explain:
        raise BadRequestError("--explain is of one run, --ab of two", remedy="explain each with --dryrun")
    nodes = SweepNodes(nnodes=launch.nnodes, node_rank=launch.node_rank, master_addr=launch.master_addr,
                       master_port=launch.master_port, sweep_dir=launch.run_dir)  # fmt: skip
    how = SweepOptions(repeats=launch.repeats, as_json=output.as_json)
    display = AbDisplay(as_json=output.as_json)
    if nodes.node_rank != 0:
        return follow_sweep(follower(how, launch, nodes), display)
    request = ab_request(text, sweep_request(SweptOptions(**vars(asked)), how, judge, launch, nodes), this_host())
    if output.dryrun:
        dry_run_sweep(request, display)
        return ExitCode.OK
    return start_sweep(request, display, Sitting(meeting=Meeting(nodes.master_addr, nodes.master_port)))


@takes(ExperimentOptions, JudgeOptions, LaunchOptions, SlurmLaunchOptions, AbOptions, RunOutput)
def run(
    asked: ExperimentOptions,
    judge: JudgeOptions,
    launch: LaunchOptions,
    slurm: SlurmLaunchOptions,
    second: AbOptions,
    output: RunOutput,
) -> None:
    """Train with real megatron-core, measure every rank, and judge the result against golden values.

    Without a GPU the recipe's cpu operating point is trained: the same model at a size that two cores manage.

    Exit codes: 0 passed, 2 wrong request, 3 failed, 4 out of memory, 5 regression, 6 inconclusive.
    """
    if second.ab is not None:
        raise typer.Exit(int(run_ab(second.ab, asked, judge, launch, slurm, output)))
    from harness.asking.requests import run_request, slurm_run_request
    from harness.batch.repeats import run_experiment
    from harness.run.experiment import dry_run
    from harness.run.show import Display

    request, on_slurm = run_request(asked, judge, launch), slurm_run_request(launch, slurm)
    display = Display(as_json=output.as_json, explain=output.explain)
    if on_slurm is not None:
        from harness.batch.slurm.repeats import dry_run_on_slurm, run_on_slurm
        from harness.batch.slurm.showing import JobDisplay

        if output.dryrun:
            dry_run_on_slurm(request, on_slurm, JobDisplay(display))
            return
        raise typer.Exit(int(run_on_slurm(request, on_slurm, JobDisplay(display))))
    if output.dryrun:
        dry_run(request, display)
        return
    raise typer.Exit(int(run_experiment(request, display)))
