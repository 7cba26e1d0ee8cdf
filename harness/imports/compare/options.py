"""Options of `compare` for logs and golden values of Megatron-Bridge and Megatron-LM."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.asking.options import JudgeOptions, WholeShortOptions

if TYPE_CHECKING:
    from harness.errors import BadRequestError
    from harness.imports.compare.convergence import LossLimits
    from harness.imports.compare.run import ForeignRequest

_LOG = "Logs of Megatron-Bridge and Megatron-LM"
_LOSS = "Loss curves, with --check_loss; spelled as in Megatron-Bridge"


def _option(*names: str, panel: str, text: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel)


# fmt: off
@dataclass(frozen=True, kw_only=True)
class ForeignOptions:
    """Which log to hold against which golden file."""

    log: Annotated[list[str] | None, _option("--log", metavar="FILE...", panel=_LOG,
        text="Training logs of one job instead of a RUN: files, folders, or - for stdin.")] = None
    foreign_golden: Annotated[Path | None, _option("--golden", metavar="FILE", panel=_LOG,
        text="Golden values of Megatron-Bridge or Megatron-LM to hold the log against.")] = None
    form: Annotated[str, _option("--format", metavar="FORMAT", panel=_LOG,
        text="Of the golden file: bridge, megatron-lm or auto.")] = "auto"
    actuals: Annotated[Path | None, _option("--actuals", metavar="FILE", panel=_LOG,
        text="Write what the log says as golden values of Megatron-Bridge; added to the steps that the file has.")] = None
    check_loss: Annotated[bool, _option("--check_loss", panel=_LOG,
        text="Hold the loss curve against the golden's as well.")] = False


@dataclass(frozen=True, kw_only=True)
class LossOptions:
    """What a loss curve may differ by; None: the default of the check."""

    correlation_threshold: Annotated[float | None, _option("--correlation_threshold", metavar="R", panel=_LOSS,
        text="Least correlation of the curves. Default 0.95; not taken of few points or a flat curve.")] = None
    high_loss_tolerance: Annotated[float | None, _option("--high_loss_tolerance", metavar="FRACTION", panel=_LOSS,
        text="Tolerance of a loss above 2. Default 0.10.")] = None
    medium_loss_tolerance: Annotated[float | None, _option("--medium_loss_tolerance", metavar="FRACTION", panel=_LOSS,
        text="Tolerance of a loss above 0.5. Default 0.05.")] = None
    low_loss_tolerance: Annotated[float | None, _option("--low_loss_tolerance", metavar="FRACTION", panel=_LOSS,
        text="Tolerance of a loss up to 0.5. Default 0.02.")] = None
    final_loss_tolerance: Annotated[float | None, _option("--final_loss_tolerance", metavar="FRACTION", panel=_LOSS,
        text="Tolerance of the last loss. Default 0.05.")] = None
    max_outlier_ratio: Annotated[float | None, _option("--max_outlier_ratio", metavar="FRACTION", panel=_LOSS,
        text="Share of points that may be out of tolerance. Default 0.1.")] = None
    outlier_threshold: Annotated[float | None, _option("--outlier_threshold", metavar="SIGMA", panel=_LOSS,
        text="Standard deviations from which a residual is an outlier. Default 3.")] = None
    skip_first_percent_loss: Annotated[float | None, _option("--skip_first_percent_loss", metavar="FRACTION", panel=_LOSS,
        text="Share of the points that does not count. Default 0.20.")] = None
# fmt: on


class CompareCommand(WholeShortOptions):
    """`compare`: several files may follow one `--log`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`--log a.log b.log` as `--log a.log --log b.log`."""
        from harness.asking.options import spread

        return super().parse_args(ctx, spread(args, {"--log": None}))


def foreign_request(given: ForeignOptions, loss: LossOptions, judge: JudgeOptions) -> "ForeignRequest":
    """The options as one value. BadRequestError names all that do not go together."""
    from harness.asking.requests import gate_options, window_options
    from harness.errors import raise_all
    from harness.imports.compare.run import ForeignRequest
    from harness.imports.compare.values import ForeignThresholds

    gate = gate_options(judge)
    raise_all(_problems(given, loss, judge))
    return ForeignRequest(
        logs=tuple(given.log or ()),
        golden=given.foreign_golden or judge.golden_values_path,
        form="auto" if given.form == "auto" else "bridge" if given.form == "bridge" else "megatron-lm",
        window=window_options(judge),
        thresholds=ForeignThresholds(
            ForeignThresholds.time if gate.timing_threshold is None else gate.timing_threshold,
            ForeignThresholds.memory if gate.memory_threshold is None else gate.memory_threshold,
        ),
        loss_limits=_limits(loss) if given.check_loss else None,
        fail_on_improvement=gate.fail_on_improvement,
        actuals=given.actuals,
    )


def _limits(loss: LossOptions) -> "LossLimits":
    from harness.imports.compare.convergence import LossLimits

    return LossLimits(**{name: value for name, value in vars(loss).items() if value is not None})


def _problems(given: ForeignOptions, loss: LossOptions, judge: JudgeOptions) -> "list[BadRequestError]":
    import math

    from harness.errors import BadRequestError

    found = []
    if given.form not in ("auto", "bridge", "megatron-lm"):
        found.append(BadRequestError(f"--format {given.form!r}: no such format", remedy="bridge, megatron-lm or auto"))
    if given.foreign_golden and judge.golden_values_path:
        found.append(
            BadRequestError("--golden and --golden_values_path are two answers to one question", remedy="give one")
        )
    if not (given.foreign_golden or judge.golden_values_path or given.actuals):
        found.append(
            BadRequestError("--log: nothing to hold it against", remedy="name golden values with --golden FILE")
        )
    if judge.accept_difference:
        why = "--accept_difference: a log does not say what it was measured on"
        found.append(BadRequestError(why, remedy="leave it out: nothing is refused for it"))
    set_values = {f.name: getattr(loss, f.name) for f in fields(loss) if getattr(loss, f.name) is not None}
    if set_values and not given.check_loss:
        names = ", ".join(f"--{name}" for name in set_values)
        found.append(BadRequestError(f"{names}: losses are compared with --check_loss only", remedy="add --check_loss"))
    for name, value in set_values.items():
        least, most = (-1.0, 1.0) if name == "correlation_threshold" else (0.0, math.inf)
        most = 0.999999 if name == "skip_first_percent_loss" else most
        if not (math.isfinite(value) and least <= value <= most):
            told = f"{least:g} to {most:g}" if math.isfinite(most) else f"{least:g} or more"
            found.append(BadRequestError(f"--{name} {value}: out of range", remedy=told))
    return found
