"""`mbr-perf import`: a training log as a run."""

from typing import Annotated, Any, ClassVar

import typer

from harness.cli import completion
from harness.cli.commands import WholeShortOptions, takes
from harness.cli.options import MODEL, ExperimentOptions, Json, JudgeOptions, Results, option, options


# fmt: off
@options({"log": "Import", "results_dir": ""})
class ImportOptions:
    """The logs of one job."""

    log: Annotated[list[str], option("PATH...", "Logs of one job of Megatron: files or folders.")]
    results_dir: Results = None
    as_json: Json = False


@options(MODEL)
class JobOptions(ExperimentOptions):
    """The settings of the job."""

    gpu: Annotated[str | None, option("GPU", "The GPU type of the job. Required: no log contains it.", "-g",
        completes=completion.gpus)] = None
# fmt: on


class ImportCommand(WholeShortOptions):
    """`import`: several logs may follow one `--log`, or stand first, without it."""

    many: ClassVar = {"--log": None}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the option before the first word."""
        return super().parse_args(ctx, ["--log", *args] if args and not args[0].startswith("-") else args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Name the logs, which are no parameter."""
        return ["[LOG...]", *super().collect_usage_pieces(ctx)]


@takes(ImportOptions, JobOptions, JudgeOptions)
def import_log(what: ImportOptions, asked: JobOptions, judge: JudgeOptions) -> None:
    """Turn a training log into a run, so that history, compare, explain, report and results work on it.

    The recipe and its options describe the job; the arguments that Megatron-LM prints say what these leave open. Facts
    that the log does not contain stay unknown, and a comparison that needs them is inconclusive. Exit codes: those of
    `run`.
    """
    from harness.cli.requests import experiment_request, read
    from harness.imports.run import ImportRequest, import_run, with_job
    from harness.measure.experiment import Display
    from harness.records.gating import GateOptions

    logs = tuple(what.log)
    request, notes = with_job(logs, experiment_request(asked, judge))
    job = ImportRequest(
        logs=logs,
        asked=request,
        gate=read(GateOptions, judge),
        notes=notes,
        results_dir=what.results_dir,
    )
    raise typer.Exit(int(import_run(job, Display(as_json=what.as_json))))
