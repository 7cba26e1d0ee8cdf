"""`mbr-perf sweep`, several settings measured against one control, and `mbr-perf report`, which judges a sweep again."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from harness.asking.options import (
    Json,
    JudgeOptions,
    LocalLaunchOptions,
    Results,
    SlurmArrayOptions,
    SweepNodes,
    takes,
)
from harness.sweep.options import SweepOptions, SweptOptions


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
    from harness.sweep import run
    from harness.sweep.request import follower, require_only_resume, slurm_sweep_request, sweep_request
    from harness.sweep.show import SweepDisplay

    on_slurm, display = slurm_sweep_request(how, launch, nodes, slurm), SweepDisplay(as_json=how.as_json)
    sitting = run.Sitting(
        how.max_minutes, is_warm=not how.no_warm, meeting=Meeting(nodes.master_addr, nodes.master_port)
    )
    if on_slurm is not None:
        launch = replace(launch, launcher="torchrun")  # of the nodes
    elif nodes.node_rank != 0:
        raise typer.Exit(int(run.follow_sweep(follower(how, launch, nodes), display)))
    if how.resume is not None:
        require_only_resume(asked, how, judge, launch)
        if on_slurm is not None:
            raise typer.Exit(int(run.resume_sweep_on_slurm(how.resume, launch.results_dir, on_slurm, display)))
        answer = run.answered_from_jobs(how.resume, launch.results_dir, display)
        if answer is None:
            answer = run.resume_sweep(how.resume, launch.results_dir, display, sitting)
        raise typer.Exit(int(answer))
    request = sweep_request(asked, how, judge, launch, nodes)
    if how.dryrun:
        run.dry_run_sweep(request, display, on_slurm)
    elif on_slurm is not None:
        raise typer.Exit(int(run.start_sweep_on_slurm(request, on_slurm, display)))
    else:
        raise typer.Exit(int(run.start_sweep(request, display, sitting)))


# fmt: off
@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Which sweep, which formats, where to."""

    sweep: Annotated[str, typer.Argument(metavar="SWEEP", help="A sweep's folder, its sweep.json, or the start of its id.")]
    formats: Annotated[list[str] | None, typer.Option("--format", metavar="NAME,NAME,...",
        help="html, md, csv, json, png. Default: all of them. Repeatable.")] = None
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where to. Default: the sweep's report folder.")] = None
    results_dir: Results = None
    as_json: Json = False
# fmt: on


@takes(ReportOptions)
def report(asked: ReportOptions) -> None:
    """Judge a sweep again and write its reports: one HTML file that opens offline, Markdown, CSV, JSON, pictures.

    Nothing runs; golden values and formulas are today's. Pictures need the extra mbr-perf[report]. Exits 0 when the
    reports are written, whatever they say.
    """
    from harness.sweep.reports import ReportRequest, report_sweep

    formats = tuple(name.strip() for text in asked.formats or () for name in text.split(",") if name.strip())
    report_sweep(ReportRequest(asked.sweep, formats, asked.out, asked.results_dir, asked.as_json))
