"""`mbr-perf nightly`: a suite of cases, run and judged against golden values."""

import typer

from harness.asking.options import LocalLaunchOptions, SlurmLaunchOptions, takes
from harness.night.options import NightJudgeOptions, NightOutputOptions, SuiteOptions


@takes(SuiteOptions, LocalLaunchOptions, NightJudgeOptions, NightOutputOptions, SlurmLaunchOptions)
def nightly(
    what: SuiteOptions,
    launch: LocalLaunchOptions,
    judge: NightJudgeOptions,
    output: NightOutputOptions,
    slurm: SlurmLaunchOptions,
) -> None:
    """Run a suite of cases and judge each against its golden values.

    A case that fails stops no other. What looks like a regression is run again before it is called one. An interrupted
    night is resumed. Reports lie in the night's folder; every run is added to history.

    Slower than the threshold is a regression if noise would do so in fewer than 1 of 100 nights; once five nights of a
    case are known, more than 2 % slower is. Beyond the threshold without that evidence is inconclusive: more repeats
    help. Peak memory is a regression if every run is beyond its threshold.

    With --aa the labels A and A' of one setting take turns, A A' A' A, before that case's own runs. Where their times
    differ by more than 2 % (or the case's smaller threshold) and noise would do so in fewer than 1 of 100 nights (Student's
    t, two-sided), or a run of theirs failed or is missing, every time of the night is inconclusive. So it is where these
    runs vary so much that a difference as large as the case's threshold would not show: more --aa_pairs help. Memory is
    judged all the same, unless A and A' differ in it beyond the case's threshold. These runs are not added to history.

    Exit codes: 0 passed, 2 wrong request, or every case refused, 3 a case failed, 4 out of memory, 5 regression, 6 inconclusive or unfinished.
    """
    from harness.night.request import night_asked
    from harness.night.run import Audience, dry_run_night, resume_night, start_night
    from harness.night.show import NightDisplay

    request, outputs = night_asked(what, judge, launch, slurm, output)
    audience = Audience(NightDisplay(as_json=output.as_json), outputs)
    if request is None:
        assert what.resume is not None  # else there is a request
        raise typer.Exit(int(resume_night(what.resume, launch.results_dir, audience)))
    if what.dryrun:
        raise typer.Exit(int(dry_run_night(request, audience.display)))
    raise typer.Exit(int(start_night(request, audience)))
