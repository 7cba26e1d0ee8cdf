"""`mbr-perf compare`: judge a run that was measured earlier, or a training log."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from harness.cli import completion
from harness.cli.commands import takes
from harness.cli.options import Json, JudgeOptions, Results
from harness.errors import BadRequestError, raise_all

if TYPE_CHECKING:
    from harness.compare.judge import ForeignRequest
    from harness.compare.sides import Side
FORMATS = ("auto", "bridge", "megatron-lm")


def _of_logs(name: str, metavar: str | None, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel="Logs of Megatron-Bridge and Megatron-LM")


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """The two sides to compare."""

    run: Annotated[
        str | None,
        typer.Argument(
            metavar="A",
            autocompletion=completion.runs,
            help="A run (a folder, a record.json, the start of its id, a --json document), a folder of runs of one "
            "setting, or a training log, finished or not, also .gz, - or a folder of logs. Not with --log.",
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
    follow: Annotated[
        bool, _of_logs("--follow", None, "Compare again whenever the log grows, in one line, until the job ends.")
    ] = False


@takes(CompareOptions, ForeignOptions, JudgeOptions)
def compare(what: CompareOptions, foreign: ForeignOptions, judge: JudgeOptions) -> None:
    """Judge A against the reference B, each a run, a training log or golden values, and exit with the verdict.

    A log that has not finished is judged up to its last iteration: a regression exits 5, everything else 6.
    """
    from harness.cli.requests import given_options
    from harness.compare.sides import logs_of, side_of

    if foreign.log:
        _compare_log(what, foreign, judge, logs_of(foreign.log))
    ours = None if what.run is None else side_of(what.run)
    theirs = None if what.golden is None else side_of(what.golden)
    if ours and (job := _as_log(ours, theirs, what.results_dir)):
        if theirs is None and not (foreign.foreign_golden or judge.golden_values_path or foreign.actuals):
            problem = f"{what.run}: a log, and nothing to compare it with"
            raise BadRequestError(problem, remedy="name B: a log, run, golden")
        _compare_log(replace(what, run=None), foreign, judge, job, theirs)
    others = given_options(foreign, but=())
    if others:
        raise BadRequestError(f"{', '.join(others)}: for a log only", remedy=_instead(what, foreign))
    if ours is None:
        raise BadRequestError(
            "nothing to compare", remedy="name a RUN, or a training log with --log FILE --golden FILE"
        )
    _compare_run(what, ours.paths, theirs.given if theirs else None, judge)


def _as_log(ours: "Side", theirs: "Side | None", results: Path | None) -> "Side | None":
    """Return A if it is judged as a log: it is one, or its reference is a log or another program's golden values."""
    from harness.records.store import record_path

    if ours.kind in ("golden", "foreign"):
        problem = f"{ours.given}: golden values, not a run or a log"
        raise BadRequestError(problem, remedy="name what you judge first: mbr-perf compare A B")
    if ours.kind == "log":
        return ours
    if theirs is None or theirs.kind not in ("log", "foreign"):
        return None
    if ours.kind == "run":
        return ours
    is_log = theirs.kind == "log" and not Path(theirs.given).is_dir()  # an empty folder may be one of goldens
    return replace(ours, kind="run", given=str(record_path(ours.given, results))) if is_log else None


def _instead(what: CompareOptions, foreign: ForeignOptions) -> str:
    """Return what to do with options for logs; the golden of a run is the argument after it."""
    log = "name a log with --log FILE"
    if what.run is None or what.golden is not None or foreign.foreign_golden is None:
        return log
    command = f"mbr-perf compare {shlex.quote(what.run)} {shlex.quote(str(foreign.foreign_golden))}"
    return f"for a run: {command}; for a log: {log}"


def _compare_log(
    what: CompareOptions, foreign: ForeignOptions, judge: JudgeOptions, ours: "Side", theirs: "Side | None" = None
) -> NoReturn:
    from harness.compare.following import followed
    from harness.compare.judge import compare_foreign
    from harness.compare.show import foreign_document, foreign_page
    from harness.show import json
    from harness.show.terminal import show_page

    if what.run is not None or what.repeat:
        raise BadRequestError(
            f"RUN {what.run or what.repeat} and --log: mbr-perf compares either a run or a log",
            remedy="give only one of them; several logs of one job: --log a.log b.log",
        )
    request = _foreign_request(foreign, judge, ours, theirs)
    answer = followed(request) if foreign.follow else compare_foreign(request)
    if what.as_json:
        json.answer(foreign_document(answer))
    else:
        show_page(foreign_page(answer))
        if foreign.actuals:
            none = f"Not written, because the log has no iteration: {foreign.actuals}"
            print(f"Written: {answer.actuals}" if answer.actuals else none)
    raise typer.Exit(int(answer.exit_code))


def _compare_run(what: CompareOptions, runs: tuple[str, ...], golden: str | None, judge: JudgeOptions) -> None:
    from harness.cli.requests import read
    from harness.judge.compare import WindowOptions, compare_stored
    from harness.measure.result import compare_page
    from harness.measure.values import compare_document
    from harness.records.gating import GateOptions
    from harness.show import json
    from harness.show.terminal import show_page

    every, gate, window = (*runs, *(what.repeat or ())), read(GateOptions, judge), read(WindowOptions, judge)
    verdict = compare_document(*compare_stored(every, golden, gate, window, what.results_dir))
    json.answer(verdict) if what.as_json else show_page(compare_page(verdict))
    raise typer.Exit(verdict.exit_code)


def _foreign_request(
    given: ForeignOptions, judge: JudgeOptions, ours: "Side", theirs: "Side | None"
) -> "ForeignRequest":
    """Return the options as one value. BadRequestError names all options that conflict."""
    from harness.cli.requests import read
    from harness.compare.convergence import LossLimits
    from harness.compare.judge import ForeignRequest
    from harness.compare.sides import side_of
    from harness.compare.values import OF_BRIDGE
    from harness.judge.compare import WindowOptions
    from harness.judge.gate import Thresholds
    from harness.records.gating import GateOptions

    gate = read(GateOptions, judge)
    raise_all(_problems(given, judge, ours, theirs))
    golden = given.foreign_golden or judge.golden_values_path
    return ForeignRequest(
        ours=ours,
        golden=theirs or (side_of(str(golden)) if golden else None),
        form="auto" if given.form == "auto" else "bridge" if given.form == "bridge" else "megatron-lm",
        window=read(WindowOptions, judge),
        thresholds=Thresholds(
            OF_BRIDGE.time if gate.timing_threshold is None else gate.timing_threshold,
            OF_BRIDGE.memory if gate.memory_threshold is None else gate.memory_threshold,
        ),
        loss_limits=LossLimits() if given.check_loss else None,
        fail_on_improvement=gate.fail_on_improvement,
        actuals=given.actuals,
    )


def _problems(given: ForeignOptions, judge: JudgeOptions, ours: "Side", theirs: "Side | None") -> list[BadRequestError]:
    from harness.foreign.logs.sources import is_stream

    golden = theirs or given.foreign_golden or judge.golden_values_path
    rows = (
        (given.form not in FORMATS, f"--format {given.form!r}: no such format", "use bridge, megatron-lm or auto"),
        (
            sum(map(bool, (theirs, given.foreign_golden, judge.golden_values_path))) > 1,
            "B, --golden and --golden_values_path: two of them both name the golden values",
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
        (
            given.follow and (ours.kind == "run" or any(map(is_stream, ours.paths))),
            f"--follow: {ours.given} is no log file that grows",
            "name a log file",
        ),
    )
    return [BadRequestError(problem, remedy=remedy) for is_wrong, problem, remedy in rows if is_wrong]
