"""`mbr-perf nightly`: a suite of cases, run and judged against golden values."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import completion
from harness.cli.commands import takes
from harness.cli.options import ClusterLaunchOptions, GoldenDir, Json, LocalLaunchOptions, flag, option, options
from harness.errors import Problems

if TYPE_CHECKING:
    from harness.nightly.plan import NightRequest

_SUITE, _JUDGE, _OUTPUT = "Suite", "Judging", "Output"


# fmt: off
@options({"suite": "", "only": _SUITE})
class SuiteOptions:
    """What to run, and how often."""

    suite: Annotated[str | None, typer.Argument(metavar="SUITE",
        autocompletion=completion.suites, help="A suite file: a name in recipes/suites or a path.")] = None
    only: Annotated[list[str] | None, option("PATTERN", "Only cases whose names match, e.g. 'llama3_*'. "
        "Repeatable.")] = None
    engine: Annotated[str | None, option("NAME", "mcore: mbr-perf's own loop (default). bridge: that of "
        "Megatron-Bridge, with the recipe function that a case's point is from.")] = None
    confirm: Annotated[int, option("N", "Run a case that looks like a regression N more times.")] = 3
    retries: Annotated[int, option("N", "Retry a case at most N times after a known infrastructure fault.")] = 1
    resume: Annotated[str | None, option("NIGHT", "Do the missing runs of a night, by its own settings: its folder or "
        "the start of its id.", completes=completion.nights)] = None
    recipes_dir: Annotated[Path | None, option("DIR", "Directory of recipe families and of suites/.")] = None
    dryrun: Annotated[bool, flag("Print the cases and what would run; run nothing.", "--dryrun", "--dry_run",
        "-d")] = False


@options(_JUDGE)
class NightJudgeOptions:
    """How to judge; thresholds are the suite's."""

    golden_dir: GoldenDir = None
    accept_differences: Annotated[list[str] | None, option("NAME", "Compare although this differs: a package, software "
        "(all of them), driver_version. Repeatable.", "--accept_difference")] = None
    fail_on_improvement: Annotated[bool, flag("Exit 7 on an improvement beyond the threshold.")] = False
    against: Annotated[str, option("ENVIRONMENT", "Decide a suspicious case by pairs of runs, tonight's and this "
                                                  "environment's build (ENV, ENV/bin/python, or last-good).")] = ""
    pairs: Annotated[int | None, option("N", "Pairs of --against, 5 (default) to 50.")] = None


@options(_OUTPUT)
class NightOutputOptions:
    """Where the answer goes. mbr-perf always writes every report into the night's folder, too."""

    as_json: Json = False
    junit: Annotated[Path | None, option("FILE", "JUnit XML.")] = None
    step_summary: Annotated[Path | None, option("FILE", "Append Markdown, e.g. to $GITHUB_STEP_SUMMARY.")] = None
    html: Annotated[Path | None, option("DIR", "The night's page, a page per case, and an index.")] = None
# fmt: on


@takes(SuiteOptions, LocalLaunchOptions, NightJudgeOptions, NightOutputOptions, ClusterLaunchOptions)
def nightly(
    what: SuiteOptions,
    launch: LocalLaunchOptions,
    judge: NightJudgeOptions,
    output: NightOutputOptions,
    cluster: ClusterLaunchOptions,
) -> None:
    """Run a suite of cases and compare each with its golden values.

    If a case fails, the others still run. Reports are in the night's folder, all runs in history.

    A case that is worse than the threshold and than the noise of its nights runs again: a regression if these runs
    agree, else inconclusive. A second night as bad in a row, or a third that is worse by half the threshold, is a
    regression in any case. With --against, it runs the old and the new build in turn, and their difference decides.

    Exit codes: 0 passed, 2 wrong request, or every case refused, 3 a case failed, 4 out of memory, 5 regression, 6
    inconclusive or unfinished.
    """
    from harness.cli.requests import require_nothing_else
    from harness.nightly.plan import chosen_suite
    from harness.nightly.reports import require_outputs
    from harness.nightly.run import dry_run_night, resume_night, start_night
    from harness.nightly.show import NightDisplay, Outputs

    problems, may = Problems(), "--results_dir and the options of outputs"
    outputs = Outputs(junit=output.junit, step_summary=output.step_summary, html=output.html)
    problems.tried(lambda: require_outputs(outputs))
    display = NightDisplay(as_json=output.as_json, outputs=outputs)
    if what.resume is not None:
        given = (what, judge, launch, cluster)
        problems.tried(lambda: require_nothing_else("night", may, given, _MAY_ACCOMPANY))
        problems.raise_if_any()
        raise typer.Exit(int(resume_night(what.resume, launch.results_dir, display)))
    request = _request(what, judge, launch, cluster, problems)
    if problems.found and request is not None:
        problems.tried(lambda: chosen_suite(request))
    problems.raise_if_any()
    assert request is not None  # else there are problems
    run = dry_run_night if what.dryrun else start_night
    raise typer.Exit(int(run(request, display)))


_MAY_ACCOMPANY = frozenset({"resume", "results_dir"})


def _request(
    what: SuiteOptions,
    judge: NightJudgeOptions,
    launch: LocalLaunchOptions,
    cluster: ClusterLaunchOptions,
    problems: Problems,
) -> "NightRequest | None":
    """Return the request as far as it can be read; None without a suite. ``problems`` takes what is wrong with it."""
    from harness.cli.requests import batch_launch, is_for_cluster, read, require_engine
    from harness.nightly.plan import NightRequest
    from harness.records.batches import BatchLaunch
    from harness.records.job import CLUSTERS

    on_cluster, words = None, BatchLaunch(launcher=launch.launcher, replay_from=launch.replay_from)
    if what.suite is None:
        problems.add("nightly needs a suite", "mbr-perf nightly SUITE, or --resume NIGHT")
    if cluster.detach or cluster.no_submit:
        problems.add(
            "nightly waits for its jobs: their results decide which runs come next",
            "leave --detach and --no_submit out; scripts/nightly.sbatch runs the night itself as a job",
        )
    if judge.pairs is not None and not judge.against:
        problems.add("--pairs needs --against", "add --against ENVIRONMENT")
    if is_for_cluster(launch, cluster):
        from harness.cli.cluster import cluster_request

        on_cluster = problems.tried(lambda: cluster_request(launch, cluster, {}))
    problems.tried(lambda: require_engine(what.engine))
    words = problems.tried(lambda: batch_launch(launch)) or words
    if what.suite is None:
        return None
    return read(
        NightRequest,
        what,
        judge,
        launch,
        num_pairs=NightRequest.num_pairs if judge.pairs is None else judge.pairs,
        launch=words.model_copy(update={"launcher": "torchrun"}) if launch.launcher in CLUSTERS else words,
        cluster=on_cluster.options if on_cluster else None,
    )
