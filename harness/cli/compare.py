"""`mbr-perf compare`: judge a run that was measured earlier."""

from pathlib import Path
from typing import Annotated

import typer

# fmt: off
Threshold = Annotated[float | None, typer.Option("--timing_threshold", "--timing-threshold", metavar="FRACTION",
    help="Allowed relative loss of throughput. Default: the GPU type's (0.05; cpu 0.15).")]
MemoryThreshold = Annotated[float | None, typer.Option("--memory_threshold", "--memory-threshold", metavar="FRACTION",
    help="Allowed relative growth of peak memory. Default: the GPU type's (0.05; cpu 0.005).")]
Accept = Annotated[list[str] | None, typer.Option("--accept_difference", "--accept-difference", metavar="NAME",
    help="Compare although this differs: a package, device_name, driver_version, a setting such as recompute, "
         "or software for all packages and the driver. Repeatable.")]
GoldenPath = Annotated[Path | None, typer.Option("--golden_values_path", "--golden-values-path", metavar="PATH",
    help="A golden file, or a folder of golden files. Naming it requires a golden.")]
FailOnImprovement = Annotated[bool, typer.Option("--fail_on_improvement", "--fail-on-improvement",
    help="Exit with 7 when a metric improved beyond its threshold.")]
RequireGolden = Annotated[bool, typer.Option("--require_golden", "--require-golden",
    help="Exit with 6 when there is no golden for the run's settings.")]
SkipTime = Annotated[float | None, typer.Option("--skip_first_percent_time", "--skip-first-percent-time",
    metavar="FRACTION", help="Share of the steps that does not count. Default: as the run was measured.")]
StartStep = Annotated[int | None, typer.Option("--eval_time_start_step", "--eval-time-start-step", metavar="STEP",
    help="First step that counts, from 0; overrides the share.")]
EndStep = Annotated[int | None, typer.Option("--eval_time_end_step", "--eval-time-end-step", metavar="STEP",
    help="First step that no longer counts.")]
Results = Annotated[Path | None, typer.Option("--results_dir", "--results-dir", metavar="DIR",
    help="Where runs are kept.")]
Repeats = Annotated[list[str] | None, typer.Option("--repeat", metavar="RUN",
    help="A further run of the same settings; medians of the runs are compared. Repeatable.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
# fmt: on


def compare(
    run: Annotated[str, typer.Argument(help="A run folder, a record.json, or the start of a run's id.")],
    golden: Annotated[
        str | None,
        typer.Argument(help="A golden file or folder, or another run. Default: the golden of the run's settings."),
    ] = None,
    timing_threshold: Threshold = None,
    memory_threshold: MemoryThreshold = None,
    accept_difference: Accept = None,
    golden_values_path: GoldenPath = None,
    fail_on_improvement: FailOnImprovement = False,
    require_golden: RequireGolden = False,
    skip_first_percent_time: SkipTime = None,
    eval_time_start_step: StartStep = None,
    eval_time_end_step: EndStep = None,
    repeat: Repeats = None,
    results_dir: Results = None,
    as_json: Json = False,
) -> None:
    """Hold a run against golden values, or against another run, and exit with the verdict."""
    from harness.analysis.compare import GateOptions, WindowOptions, compare_runs, find_reference
    from harness.analysis.outcome import comparison_outcome
    from harness.errors import BadRequestError
    from harness.records.store import read_run

    gate = GateOptions(
        golden_values_path=golden_values_path,
        timing_threshold=timing_threshold,
        memory_threshold=memory_threshold,
        accept_differences=tuple(accept_difference or ()),
        fail_on_improvement=fail_on_improvement,
        require_golden=require_golden,
    )
    window = WindowOptions(skip_first_percent_time, eval_time_start_step, eval_time_end_step)
    if golden is not None and golden_values_path is not None:
        raise BadRequestError(
            f"GOLDEN {golden} and --golden_values_path {golden_values_path} are two answers; give one"
        )
    records = tuple(read_run(reference, results_dir) for reference in (run, *(repeat or ())))
    search = find_reference(golden, records[0], gate, results_dir)
    metrics, comparison = compare_runs(records, search, gate, window)
    verdict = comparison_outcome(comparison, fail_on_improvement=fail_on_improvement)
    if as_json:
        from harness.report import json

        print(json.text(json.compare_document(records, metrics, comparison, verdict)))
    else:
        from rich.console import Console

        from harness.report.terminal import print_compare

        print_compare(Console(), records, comparison, verdict)
    raise typer.Exit(int(verdict[1]))
