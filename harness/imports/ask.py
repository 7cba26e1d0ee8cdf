"""`mbr-perf import`: a training log as a run, or several logs as a sweep."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli import completion
from harness.cli.options import MODEL, ExperimentOptions, JudgeOptions, WholeShortOptions, spread, takes
from harness.errors import BadRequestError

if TYPE_CHECKING:
    from harness.imports.request import ImportRequest, ImportSweepRequest, LabelledLogs


def _option(name: str, metavar: str | None, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel="Import")


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """The logs of one job or of several jobs."""

    log: Annotated[
        list[str],
        _option(
            "--log",
            "[SETTING=]PATH...",
            "Logs of one job of Megatron-Bridge or Megatron-LM: files or folders. With SETTING=, several jobs become a "
            "sweep: none=a.log, mlp,core_attn=b.log, 'core_attn pp=8'=c.log. The same SETTING again is a repeat. "
            "Repeatable.",
        ),
    ]
    sweep: Annotated[
        str | None,
        _option(
            "--sweep",
            "NAME|PATH",
            "A sweep file with the jobs' common settings, title and control. The command line overrides it.",
        ),
    ] = None
    control: Annotated[
        str,
        _option(
            "--control",
            "SETTING",
            "Compare the other jobs with this one. Default: the job without recompute, else the first.",
        ),
    ] = ""
    started_at: Annotated[
        str | None,
        _option(
            "--started_at",
            "TIME",
            "Start of the job (of several: of the first), ISO-8601, in UTC unless it names a zone. Default: the times in "
            "the log, in UTC unless they name a zone. Without either the start is unknown, and history shows the run at "
            "the time of its import, marked ?.",
        ),
    ] = None
    results_dir: Annotated[
        Path | None,
        _option("--results_dir", "DIR", "The folder of runs. Default: results of the checkout, else ./results."),
    ] = None
    as_json: Annotated[bool, _option("--json", None, "One JSON document on stdout.")] = False


@dataclass(frozen=True, kw_only=True)
class JobOptions(ExperimentOptions):
    """The settings of the job; a sweep file may name its recipe."""

    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            "-g",
            metavar="GPU",
            rich_help_panel=MODEL,
            autocompletion=completion.gpus,
            help="The GPU type of the job: h100, h200, a100, b200, b300, gb200, gb300, l40s or cpu. Required: no log contains it.",
        ),
    ] = None


class LogCommand(WholeShortOptions):
    """A command on training logs, in which several files may follow one `--log`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse `--log a.log b.log` as `--log a.log --log b.log`."""
        return super().parse_args(ctx, spread(args, {"--log": None}))


@takes(ImportOptions, JobOptions, JudgeOptions)
def import_log(what: ImportOptions, asked: JobOptions, judge: JudgeOptions) -> None:
    """Turn a training log into a run, so that history, compare, explain, report and results work on it.

    The recipe and its options describe the job; the arguments that Megatron-LM prints say what these leave open. Facts
    that the log does not contain stay unknown, and a comparison that needs them is inconclusive. Exit codes: those of `run`, or with several jobs those of `sweep`.
    """
    from harness.imports.request import ImportRequest

    request = _import_request(what, asked, judge)
    if isinstance(request, ImportRequest):
        from harness.imports.run import import_run
        from harness.measure.experiment import Display

        raise typer.Exit(int(import_run(request, Display(as_json=what.as_json))))
    from harness.imports.sweep import import_sweep
    from harness.sweep.reports import SweepDisplay

    raise typer.Exit(int(import_sweep(request, SweepDisplay(as_json=what.as_json))))


def _import_request(
    what: ImportOptions, asked: JobOptions, judge: JudgeOptions
) -> "ImportRequest | ImportSweepRequest":
    """Return the options as one value. BadRequestError: no recipe, or only some of the logs have a setting."""
    from harness.cli.requests import experiment_request, read
    from harness.imports.request import (
        ImportRequest,
        ImportSweepRequest,
        labelled,
        require_logs,
        start_of,
        sweep_file_named,
        without_recipe,
    )
    from harness.measure.logged import logged_arguments
    from harness.records.goldens import GateOptions
    from harness.resolve.sweep_file import laid_over, request_of

    file = sweep_file_named(what.sweep, asked.recipes_dir)
    request = experiment_request(asked, judge)
    request = laid_over(request_of(file.request), request) if file else request
    jobs = labelled(what.log)
    if not request.job_name and (not request.gpu or any(logged_arguments(job.logs) is None for job in jobs)):
        raise without_recipe(jobs, asked.gpu, asked.recipes_dir)
    gate, started_at = read(GateOptions, judge), start_of(what.started_at)
    require_logs(jobs)
    if any(not job.label for job in jobs):
        _require_one_job(what, jobs)
        logs = tuple(path for job in jobs for path in job.logs)
        return ImportRequest(logs=logs, asked=request, gate=gate, started_at=started_at, results_dir=what.results_dir)
    title, control = (file.title, file.control or "") if file else ("", "")
    return ImportSweepRequest(
        jobs=jobs,
        asked=request,
        gate=gate,
        title=title,
        control=what.control or control,
        started_at=started_at,
        results_dir=what.results_dir,
    )


def _require_one_job(what: ImportOptions, jobs: "tuple[LabelledLogs, ...]") -> None:
    if len(jobs) > 1:
        raise BadRequestError(
            f"--log {jobs[0].logs[0]} has no setting, but other logs have one",
            remedy="give every job its setting: --log none=a.log",
        )
    given = [name for name, value in (("--sweep", what.sweep), ("--control", what.control)) if value]
    if given:
        raise BadRequestError(
            f"{', '.join(given)}: for several jobs only, but the logs are of one job",
            remedy="name the job's setting: --log none=a.log",
        )
