"""`mbr-perf run`: train, measure, judge."""

import typer

from harness.cli.ab_options import AbOptions, run_ab
from harness.cli.option_groups import takes
from harness.cli.options import ExperimentOptions, JudgeOptions, LaunchOptions, RunOutput
from harness.cli.slurm_options import SlurmLaunchOptions


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
    from harness.cli.asking import run_request, slurm_run_request
    from harness.runner.batch.repeats import run_experiment
    from harness.runner.experiment import dry_run
    from harness.runner.showing import Display

    request, on_slurm = run_request(asked, judge, launch), slurm_run_request(launch, slurm)
    display = Display(as_json=output.as_json, explain=output.explain)
    if on_slurm is not None:
        from harness.runner.batch.slurm.repeats import dry_run_on_slurm, run_on_slurm
        from harness.runner.batch.slurm.showing import JobDisplay

        if output.dryrun:
            dry_run_on_slurm(request, on_slurm, JobDisplay(display))
            return
        raise typer.Exit(int(run_on_slurm(request, on_slurm, JobDisplay(display))))
    if output.dryrun:
        dry_run(request, display)
        return
    raise typer.Exit(int(run_experiment(request, display)))
