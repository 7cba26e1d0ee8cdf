"""`mbr-perf compare`: judge a run that was measured earlier, or a training log."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli import completion
from harness.cli.commands import takes
from harness.cli.options import Json, JudgeOptions, Results
from harness.errors import BadRequestError, raise_all

if TYPE_CHECKING:
    from harness.compare.judge import ForeignRequest
FORMATS = ("auto", "bridge", "megatron-lm")
_RANGES = {"correlation_threshold": (-1.0, 1.0), "skip_first_percent_loss": (0.0, 0.999999)}


def _of_logs(name: str, metavar: str | None, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel="Logs of Megatron-Bridge and Megatron-LM")


def _of_losses(name: str, metavar: str, text: str) -> Any:
    panel = "Loss curves, with --check_loss; spelled as in Megatron-Bridge"
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=panel)


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """The two sides to compare."""

    run: Annotated[
        str | None,
        typer.Argument(
            metavar="A",
            autocompletion=completion.runs,
            help="A run (a folder, a record.json, the start of its id) or a training log, finished or not, also .gz, - "
            "or a folder of logs. Not with --log.",
        ),
    ] = None
    golden: Annotated[
        str | None,
        typer.Argument(
            metavar="B",
            autocompletion=completion.runs_and_goldens,
            help="The reference: a golden of mbr-perf, Megatron-Bridge or Megatron-LM, a run or a log. Default: the "
            "golden of the run's settings.",
        ),
    ] = None
    repeat: Annotated[
        list[str] | None,
        typer.Option(
            "--repeat",
            metavar="RUN",
            help="Another run of the same settings. mbr-perf compares the median of all runs.",
        ),
    ] = None
    results_dir: Results = None
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class ForeignOptions:
    """The log and the golden file to compare."""

    log: Annotated[
        list[str] | None,
        _of_logs("--log", "FILE...", "Training logs of one job instead of a RUN: files, folders, or - for stdin."),
    ] = None
    foreign_golden: Annotated[
        Path | None,
        _of_logs(
            "--golden",
            "FILE",
            "Compare the log with these golden values of Megatron-Bridge, Megatron-LM or mbr-perf: a file, or a name "
            "of `mbr-perf golden list`.",
        ),
    ] = None
    form: Annotated[str, _of_logs("--format", "FORMAT", "Format of the golden file: bridge, megatron-lm or auto.")] = (
        "auto"
    )
    actuals: Annotated[
        Path | None,
        _of_logs(
            "--actuals",
            "FILE",
            "Write the log's values as golden values of Megatron-Bridge. Keeps the other steps of an existing file.",
        ),
    ] = None
    check_loss: Annotated[bool, _of_logs("--check_loss", None, "Also compare the loss curves.")] = False


@dataclass(frozen=True, kw_only=True)
class LossOptions:
    """The accepted differences of loss curves; None: the default of the check."""

    correlation_threshold: Annotated[
        float | None,
        _of_losses(
            "--correlation_threshold",
            "R",
            "Lowest accepted correlation of the curves. Default 0.95. Not computed for few points or a flat curve.",
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
            "--outlier_threshold", "SIGMA", "A residual beyond this many standard deviations is an outlier. Default 3."
        ),
    ] = None
    skip_first_percent_loss: Annotated[
        float | None,
        _of_losses(
            "--skip_first_percent_loss", "FRACTION", "Share of the first points that does not count. Default 0.20."
        ),
    ] = None


@takes(CompareOptions, ForeignOptions, JudgeOptions, LossOptions)
def compare(what: CompareOptions, foreign: ForeignOptions, judge: JudgeOptions, loss: LossOptions) -> None:
    """Judge A against the reference B, each a run, a training log or golden values, and exit with the verdict.

    A log that has not finished is judged up to its last iteration: a regression exits 5, everything else 6.
    """
    from harness.cli.requests import given_options

    what, foreign = _sides(what, foreign, judge)
    if foreign.log:
        _compare_log(what, foreign, judge, loss)
    others = given_options(foreign, loss, but=())
    if others:
        raise BadRequestError(f"{', '.join(others)}: for a log only", remedy=_instead(what, foreign))
    if what.run is None:
        raise BadRequestError(
            "nothing to compare", remedy="name a RUN, or a training log with --log FILE --golden FILE"
        )
    _compare_run(what, what.run, judge)


def _sides(what: CompareOptions, foreign: ForeignOptions, judge: JudgeOptions) -> tuple[CompareOptions, ForeignOptions]:
    """Return the options with A as ``--log`` where a side is a log, or the golden values are of another tool."""
    if foreign.log or what.run is None:
        return what, foreign
    from harness.compare.sides import is_foreign_golden, kind_of

    kind, reference = kind_of(what.run), what.golden or foreign.foreign_golden or judge.golden_values_path
    if kind == "golden":
        problem = f"{what.run}: golden values or a JSON document, not a run or a log"
        raise BadRequestError(problem, remedy="name what you judge first: mbr-perf compare A B")
    is_other = what.golden is not None and (kind_of(what.golden) == "log" or is_foreign_golden(what.golden))
    if kind != "log" and not (is_other and kind == "run"):
        return what, foreign
    if reference is None and foreign.actuals is None:
        raise BadRequestError(f"{what.run}: a log, and nothing to compare it with", remedy="name B: a log, run, golden")
    golden = foreign.foreign_golden if what.golden is None else Path(what.golden)
    return replace(what, run=None, golden=None), replace(foreign, log=[what.run], foreign_golden=golden)


def _instead(what: CompareOptions, foreign: ForeignOptions) -> str:
    """Return what to do with options for logs; the golden of a run is the argument after it."""
    log = "name a log with --log FILE"
    if what.run is None or what.golden is not None or foreign.foreign_golden is None:
        return log
    command = f"mbr-perf compare {shlex.quote(what.run)} {shlex.quote(str(foreign.foreign_golden))}"
    return f"for a run: {command}; for a log: {log}"


def _compare_log(what: CompareOptions, foreign: ForeignOptions, judge: JudgeOptions, loss: LossOptions) -> None:
    from harness.compare.judge import compare_foreign
    from harness.compare.show import foreign_document, foreign_page
    from harness.show import json
    from harness.show.terminal import show_page

    if what.run is not None or what.repeat:
        raise BadRequestError(
            f"RUN {what.run or what.repeat} and --log: mbr-perf compares either a run or a log",
            remedy="give only one of them; several logs of one job: --log a.log b.log",
        )
    answer = compare_foreign(_foreign_request(foreign, loss, judge))
    if what.as_json:
        json.answer(foreign_document(answer))
    else:
        show_page(foreign_page(answer))
        if foreign.actuals:
            none = f"Not written, because the log has no iteration: {foreign.actuals}"
            print(f"Written: {answer.actuals}" if answer.actuals else none)
    raise typer.Exit(int(answer.exit_code))


def _compare_run(what: CompareOptions, run: str, judge: JudgeOptions) -> None:
    from harness.cli.requests import read
    from harness.judge.compare import WindowOptions, compare_stored
    from harness.measure.result import compare_page
    from harness.measure.values import compare_document
    from harness.records.gating import GateOptions
    from harness.show import json
    from harness.show.terminal import show_page

    runs, gate, window = (run, *(what.repeat or ())), read(GateOptions, judge), read(WindowOptions, judge)
    verdict = compare_document(*compare_stored(runs, what.golden, gate, window, what.results_dir))
    json.answer(verdict) if what.as_json else show_page(compare_page(verdict))
    raise typer.Exit(verdict.exit_code)


def _foreign_request(given: ForeignOptions, loss: LossOptions, judge: JudgeOptions) -> "ForeignRequest":
    """Return the options as one value. BadRequestError names all options that conflict."""
    from harness.cli.requests import read
    from harness.compare.convergence import LossLimits
    from harness.compare.judge import ForeignRequest
    from harness.compare.values import OF_BRIDGE
    from harness.judge.compare import WindowOptions
    from harness.judge.gate import Thresholds
    from harness.records.gating import GateOptions

    gate = read(GateOptions, judge)
    limits = {name: value for name, value in vars(loss).items() if value is not None}
    raise_all([*_problems(given, judge), *_limit_problems(limits, checks=given.check_loss)])
    return ForeignRequest(
        logs=tuple(given.log or ()),
        golden=given.foreign_golden or judge.golden_values_path,
        form="auto" if given.form == "auto" else "bridge" if given.form == "bridge" else "megatron-lm",
        window=read(WindowOptions, judge),
        thresholds=Thresholds(
            OF_BRIDGE.time if gate.timing_threshold is None else gate.timing_threshold,
            OF_BRIDGE.memory if gate.memory_threshold is None else gate.memory_threshold,
        ),
        loss_limits=LossLimits(**limits) if given.check_loss else None,
        fail_on_improvement=gate.fail_on_improvement,
        actuals=given.actuals,
    )


def _problems(given: ForeignOptions, judge: JudgeOptions) -> list[BadRequestError]:
    golden = given.foreign_golden or judge.golden_values_path
    rows = (
        (given.form not in FORMATS, f"--format {given.form!r}: no such format", "use bridge, megatron-lm or auto"),
        (
            given.foreign_golden and judge.golden_values_path,
            "--golden and --golden_values_path both name the golden values",
            "give only one of them",
        ),
        (
            not (golden or given.actuals),
            "--log: nothing to compare it with",
            "name golden values with --golden FILE",
        ),
        (
            judge.accept_differences,
            "--accept_difference: a log does not contain its hardware and software",
            "leave the option out: mbr-perf does not check these for a log",
        ),
    )
    return [BadRequestError(problem, remedy=remedy) for is_wrong, problem, remedy in rows if is_wrong]


def _limit_problems(limits: dict[str, float], *, checks: bool) -> list[BadRequestError]:
    import math

    found = []
    if limits and not checks:
        names = ", ".join(f"--{name}" for name in limits)
        found.append(BadRequestError(f"{names}: only --check_loss compares losses", remedy="add --check_loss"))
    for name, value in limits.items():
        least, most = _RANGES.get(name, (0.0, math.inf))
        if not (math.isfinite(value) and least <= value <= most):
            accepted = f"{least:g} to {most:g}" if math.isfinite(most) else f"{least:g} or more"
            found.append(BadRequestError(f"--{name} {value}: out of range", remedy=f"use {accepted}"))
    return found
