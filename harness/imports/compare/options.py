"""What the command line of `mbr-perf compare` can say."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.asking.options import Json, Results


def _of_logs(name: str, metavar: str | None, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel="Logs of Megatron-Bridge and Megatron-LM")


def _of_losses(name: str, metavar: str, text: str) -> Any:
    panel = "Loss curves, with --check_loss; spelled as in Megatron-Bridge"
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=panel)


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """What to compare with what."""

    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="A run folder, a record.json, or the start of a run's id; not with --log."),
    ] = None
    golden: Annotated[
        str | None,
        typer.Argument(
            metavar="[GOLDEN]",
            help="A golden file or folder, or another run. Default: the golden of the run's settings.",
        ),
    ] = None
    repeat: Annotated[
        list[str] | None,
        typer.Option("--repeat", metavar="RUN", help="A further run of the same settings; their medians are compared."),
    ] = None
    results_dir: Results = None
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class ForeignOptions:
    """Which log to hold against which golden file."""

    log: Annotated[
        list[str] | None,
        _of_logs("--log", "FILE...", "Training logs of one job instead of a RUN: files, folders, or - for stdin."),
    ] = None
    foreign_golden: Annotated[
        Path | None,
        _of_logs("--golden", "FILE", "Golden values of Megatron-Bridge or Megatron-LM to hold the log against."),
    ] = None
    form: Annotated[str, _of_logs("--format", "FORMAT", "Of the golden file: bridge, megatron-lm or auto.")] = "auto"
    actuals: Annotated[
        Path | None,
        _of_logs(
            "--actuals",
            "FILE",
            "Write what the log says as golden values of Megatron-Bridge; added to the steps that the file has.",
        ),
    ] = None
    check_loss: Annotated[bool, _of_logs("--check_loss", None, "Hold the loss curve against the golden's as well.")] = (
        False
    )


@dataclass(frozen=True, kw_only=True)
class LossOptions:
    """What a loss curve may differ by; None: the default of the check."""

    correlation_threshold: Annotated[
        float | None,
        _of_losses(
            "--correlation_threshold",
            "R",
            "Least correlation of the curves. Default 0.95; not taken of few points or a flat curve.",
        ),
    ] = None
    high_loss_tolerance: Annotated[
        float | None, _of_losses("--high_loss_tolerance", "FRACTION", "Tolerance of a loss above 2. Default 0.10.")
    ] = None
    medium_loss_tolerance: Annotated[
        float | None, _of_losses("--medium_loss_tolerance", "FRACTION", "Tolerance of a loss above 0.5. Default 0.05.")
    ] = None
    low_loss_tolerance: Annotated[
        float | None, _of_losses("--low_loss_tolerance", "FRACTION", "Tolerance of a loss up to 0.5. Default 0.02.")
    ] = None
    final_loss_tolerance: Annotated[
        float | None, _of_losses("--final_loss_tolerance", "FRACTION", "Tolerance of the last loss. Default 0.05.")
    ] = None
    max_outlier_ratio: Annotated[
        float | None,
        _of_losses("--max_outlier_ratio", "FRACTION", "Share of points that may be out of tolerance. Default 0.1."),
    ] = None
    outlier_threshold: Annotated[
        float | None,
        _of_losses(
            "--outlier_threshold", "SIGMA", "Standard deviations from which a residual is an outlier. Default 3."
        ),
    ] = None
    skip_first_percent_loss: Annotated[
        float | None,
        _of_losses("--skip_first_percent_loss", "FRACTION", "Share of the points that does not count. Default 0.20."),
    ] = None
