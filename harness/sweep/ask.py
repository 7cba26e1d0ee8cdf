"""`mbr-perf sweep`: settings measured against one control. `mbr-perf report` judges a sweep again."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import completion
from harness.cli.commands import takes
from harness.cli.options import (
    ClusterLaunchOptions,
    EngineOptions,
    ExperimentOptions,
    Json,
    JudgeOptions,
    LocalLaunchOptions,
    Results,
    flag,
    option,
    options,
)
from harness.errors import Problems

if TYPE_CHECKING:
    from harness.records.job import ClusterRequest
    from harness.sweep.request import SweepRequest

_SWEEP = "Sweep"


# fmt: off
@options(_SWEEP)
class SweepOptions:
    """What to vary, and how often."""

    over: Annotated[list[str] | None, option("AXIS=V,V,...", "Vary recompute, tp, pp, vp, cp, ep, et, mb, gb, sl, "
                                                             "ng, any long option, env.NAME or section.field. Write "
                                                             "; between values that contain commas: "
                                                             "recompute='none; mlp; core_attn,layernorm'. "
                                                             "recompute=auto: every setting that differs in effect. "
                                                             "Repeatable.")] = None
    file: Annotated[str | None, option("NAME|PATH", "A sweep file: a name in recipes/sweeps or a path. Options "
        "override it.", completes=completion.sweep_files)] = None
    grid: Annotated[bool, flag("Run every combination of the axes, not one change at a time.")] = False
    control: Annotated[str | None, option("'AXIS=VALUE ...'", "The cell to compare with. Default: no recompute if "
        "recompute is varied, else the request.")] = None
    repeats: Annotated[int | None, option("N", "Run every cell N times, interleaved (A B C A B C). Confidence "
        "intervals need 3.")] = None
    no_prune: Annotated[bool, flag("Also run cells that should run out of memory.")] = False
    margin: Annotated[float, option("FRACTION", "Share of the GPU's memory that must stay free.")] = 0.02
    no_warm: Annotated[bool, flag("Start every run in new processes, not from a warm parent.")] = False
    resume: Annotated[str | None, option("SWEEP", "Do the missing runs of a sweep, by its own settings: its folder or "
        "the start of its id.", completes=completion.sweeps)] = None
    dryrun: Annotated[bool, flag("Print the cells, predicted and with what would run; run nothing.", "--dryrun",
        "--dry_run", "-d")] = False
    as_json: Json = False
# fmt: on


@takes(ExperimentOptions, EngineOptions, SweepOptions, JudgeOptions, LocalLaunchOptions, ClusterLaunchOptions)
def sweep(
    asked: ExperimentOptions,
    engine: EngineOptions,
    how: SweepOptions,
    judge: JudgeOptions,
    launch: LocalLaunchOptions,
    cluster: ClusterLaunchOptions,
) -> None:
    """Train several settings and say which one to use: time, memory and ms per GiB saved against a control.

    mbr-perf skips cells that cannot fit or that compute the same as another, and says why. --resume continues a sweep.

    Exit codes: 0 done (also with cells out of memory), 2 wrong request, 3 a cell failed, 5 regression, 6 inconclusive.
    """
    from harness.cli.requests import require_nothing_else
    from harness.sweep import run
    from harness.sweep.reports import SweepDisplay

    on_cluster, display = cluster_sweep_request(how, launch, cluster), SweepDisplay(as_json=how.as_json)
    if on_cluster is not None:
        launch = replace(launch, launcher="torchrun")  # of the nodes
    if how.resume is not None:
        given = (asked, engine, how, judge, launch)
        require_nothing_else("sweep", "--no_warm, --results_dir and --json", given, _MAY_ACCOMPANY)
        if on_cluster is not None:
            raise typer.Exit(int(run.resume_sweep_on_cluster(how.resume, launch.results_dir, on_cluster, display)))
        raise typer.Exit(int(run.resume_sweep(how.resume, launch.results_dir, display, is_warm=not how.no_warm)))
    request = sweep_request(asked, engine, how, judge, launch)
    if how.dryrun:
        run.dry_run_sweep(request, display, on_cluster)
    elif on_cluster is not None:
        raise typer.Exit(int(run.start_sweep_on_cluster(request, on_cluster, display)))
    else:
        raise typer.Exit(int(run.start_sweep(request, display, is_warm=not how.no_warm)))


# fmt: off
@options()
class ReportOptions:
    """Which sweep, which folder."""

    sweep: Annotated[str, typer.Argument(metavar="SWEEP", autocompletion=completion.sweeps,
        help="A sweep's folder, its sweep.json, or the start of its id.")]
    out: Annotated[Path | None, option("DIR", "The output folder. Default: the sweep's report folder.")] = None
    results_dir: Results = None
    as_json: Json = False
# fmt: on


@takes(ReportOptions)
def report(asked: ReportOptions) -> None:
    """Judge a sweep again and write its reports: one HTML file that opens offline, Markdown, CSV, JSON, pictures.

    It runs nothing, and uses today's golden values and formulas. The exit code is 0 when the reports are written,
    whatever the verdict.
    """
    from harness.sweep.reports import report_sweep

    report_sweep(asked.sweep, asked.out, asked.results_dir, as_json=asked.as_json)


_MAY_ACCOMPANY = frozenset({"resume", "no_warm", "as_json", "results_dir"})


def sweep_request(
    asked: ExperimentOptions,
    engine: EngineOptions,
    how: SweepOptions,
    judge: JudgeOptions,
    launch: LocalLaunchOptions,
) -> "SweepRequest":
    """Return all of `mbr-perf sweep` as one value. BadRequestError for an unreadable file or axis, or no recipe."""
    from harness.cli.requests import batch_launch, experiment_request, read, require_job
    from harness.records.gating import GateOptions
    from harness.resolve.sweep_file import laid_over, read_sweep_file, request_of
    from harness.sweep.request import SweepRequest, all_over

    file = read_sweep_file(how.file, asked.recipes_dir) if how.file is not None else None
    request = experiment_request(asked, judge, engine)
    request = laid_over(request_of(file.request), request) if file else request
    require_job(request, "--file SWEEP_FILE", "--resume SWEEP")
    return read(
        SweepRequest,
        how,
        launch,
        asked=request,
        over=all_over(file, how.over or ()),
        title=file.title if file else "",
        grid=how.grid or bool(file and file.grid),
        repeats=how.repeats if how.repeats is not None else file.repeats if file else 1,
        control=how.control if how.control is not None else (file.control or "") if file else "",
        prune=not how.no_prune,
        force=frozenset(asked.force or ()),
        launch=batch_launch(launch),
        gate=read(GateOptions, judge).from_root,
    )


def cluster_sweep_request(
    how: SweepOptions, launch: LocalLaunchOptions, given: ClusterLaunchOptions
) -> "ClusterRequest | None":
    """Return the request of a launcher of clusters; None for another launcher. BadRequestError with all problems."""
    from harness.cli.requests import is_for_cluster
    from harness.records.job import CLUSTERS

    problems, asked = Problems(), None
    if is_for_cluster(launch, given):
        from harness.cli.cluster import cluster_request

        asked = problems.tried(lambda: cluster_request(launch, given, {"from": launch.replay_from}))
    if launch.launcher in CLUSTERS and how.no_warm:
        problems.add(f"--no_warm cannot be used with --launcher {launch.launcher}", "leave it out")
    problems.raise_if_any()
    return asked
