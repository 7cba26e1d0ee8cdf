"""`mbr-perf sweep`: several settings measured against one control."""

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from harness.asking.options import JudgeOptions, LocalLaunchOptions, SweepNodes, takes
from harness.asking.slurm_options import SlurmArrayOptions
from harness.sweep.options import SweepOptions, SweptOptions

if TYPE_CHECKING:
    from harness.records.job import SlurmRequest


@takes(SweptOptions, SweepOptions, JudgeOptions, LocalLaunchOptions, SweepNodes, SlurmArrayOptions)
def sweep(
    asked: SweptOptions,
    how: SweepOptions,
    judge: JudgeOptions,
    launch: LocalLaunchOptions,
    nodes: SweepNodes,
    slurm: SlurmArrayOptions,
) -> None:
    """Train several settings and say which one to use: time, memory and ms per GiB saved against a control.

    Cells that cannot fit, or that equal another in effect, are not run and say so. An interrupted sweep is resumed.

    Exit codes: 0 done (also with cells out of memory), 2 wrong request, 3 a cell failed, 5 regression, 6 inconclusive.
    """
    from harness.batch.nodes import Meeting
    from harness.launch.environment import this_host
    from harness.sweep.read import follower, require_only_resume, slurm_sweep_request, sweep_request
    from harness.sweep.run import Sitting, dry_run_sweep, follow_sweep, resume_sweep, start_sweep
    from harness.sweep.show import SweepDisplay
    from harness.sweep.slurm import answered_from_jobs

    on_slurm = slurm_sweep_request(how, launch, nodes, slurm)
    if on_slurm is not None:
        raise typer.Exit(_on_slurm(on_slurm, asked, how, judge, launch, nodes))
    display, meeting = SweepDisplay(as_json=how.as_json), Meeting(nodes.master_addr, nodes.master_port)
    sitting = Sitting(how.max_minutes, is_warm=not how.no_warm, meeting=meeting)
    if nodes.node_rank != 0:
        raise typer.Exit(int(follow_sweep(follower(how, launch, nodes), display)))
    if how.resume is not None:
        require_only_resume(asked, how, judge, launch)
        answer = answered_from_jobs(how.resume, launch.results_dir, this_host(), display)
        if answer is not None:
            raise typer.Exit(int(answer))
        raise typer.Exit(int(resume_sweep(how.resume, launch.results_dir, display, sitting)))
    request = sweep_request(asked, how, judge, launch, nodes)
    if how.dryrun:
        dry_run_sweep(request, display)
        return
    raise typer.Exit(int(start_sweep(request, display, sitting)))


def _on_slurm(
    slurm: "SlurmRequest",
    asked: SweptOptions,
    how: SweepOptions,
    judge: JudgeOptions,
    launch: LocalLaunchOptions,
    nodes: SweepNodes,
) -> int:
    from harness.batch.slurm.showing import JobDisplay
    from harness.run.show import Display
    from harness.sweep.read import require_only_resume, sweep_request
    from harness.sweep.show import SweepDisplay
    from harness.sweep.slurm import SweepJobDisplay, dry_run_sweep_on_slurm, resume_sweep_on_slurm, start_sweep_on_slurm

    display = SweepJobDisplay(SweepDisplay(as_json=how.as_json), JobDisplay(Display(as_json=how.as_json)))
    launch = replace(launch, launcher="torchrun")  # of the nodes
    if how.resume is not None:
        require_only_resume(asked, how, judge, launch)
        return int(resume_sweep_on_slurm(how.resume, launch.results_dir, slurm, display))
    request = sweep_request(asked, how, judge, launch, nodes)
    if how.dryrun:
        dry_run_sweep_on_slurm(request, slurm, display)
        return 0
    return int(start_sweep_on_slurm(request, slurm, display))
