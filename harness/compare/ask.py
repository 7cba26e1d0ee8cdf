"""`mbr-perf compare`: judge a run that was measured earlier, or a training log."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import completion
from harness.cli.commands import takes
from harness.cli.options import Json, JudgeOptions, Results, flag, option, options
from harness.errors import BadRequestError, ExitCode, Problems

if TYPE_CHECKING:
    from harness.imports.sides import Side


# fmt: off
@options()
class CompareOptions:
    """The two sides to compare."""

    run: Annotated[str | None, typer.Argument(metavar="A", autocompletion=completion.runs,
        help="A run (a folder, record.json, the start of its id, a --json document), a folder of runs of one "
             "setting, or a training log, finished or not (a file, .gz, -, a folder).")] = None
    golden: Annotated[str | None, typer.Argument(metavar="B", autocompletion=completion.runs_and_goldens,
        help="The reference: a golden of mbr-perf, Megatron-Bridge or Megatron-LM, a run or a log. Default: the golden "
        "of the run's settings.")] = None
    repeat: Annotated[list[str] | None, option("RUN", "Another run of the same settings. mbr-perf compares the median "
        "of all runs.")] = None
    follow: Annotated[bool, flag("Compare a log again whenever it grows, until the job ends.")] = False
    results_dir: Results = None
    as_json: Json = False
# fmt: on


@takes(CompareOptions, JudgeOptions)
def compare(what: CompareOptions, judge: JudgeOptions) -> None:
    """Judge A against the reference B, each a run, a training log or golden values, and exit with the verdict.

    A log that has not finished is judged up to its last iteration: a regression exits 5, everything else 6.
    """
    ours, theirs = _sides(what)
    if ours.kind in ("golden", "foreign"):
        problem = f"{ours.given}: {ours.what}, not a run or a log"
        raise BadRequestError(problem, remedy="name what you judge first: mbr-perf compare A B")
    if _is_about_a_log(ours, theirs):
        code = _compare_log(what, judge, ours, theirs)
    elif what.follow:
        raise BadRequestError("--follow: for a log only", remedy="name a log")
    else:
        code = _compare_run(what, ours.paths, theirs.given if theirs else None, judge)
    raise typer.Exit(int(code))


def _sides(what: CompareOptions) -> tuple["Side", "Side | None"]:
    from harness.foreign.logs.sources import is_stream
    from harness.imports.sides import side_of, stored_run

    if not what.run:
        raise BadRequestError(
            "nothing to compare", remedy="name a run or a training log, and its reference: mbr-perf compare A B"
        )
    if what.run == what.golden and is_stream(what.run):
        problem = f"{what.run}: A and B come from one stream"
        raise BadRequestError(problem, remedy="save one of them to a file, and name the file")
    theirs = stored_run(side_of(what.golden), what.results_dir) if what.golden else None
    return stored_run(side_of(what.run), what.results_dir), theirs


def _is_about_a_log(ours: "Side", theirs: "Side | None") -> bool:
    """Return whether A is judged as a log: A or B is one, or an imported one, or B is of another program."""
    from harness.imports.sides import is_imported

    if ours.kind == "log" or theirs is None:
        return ours.kind == "log"
    if theirs.kind == "run":
        return is_imported(theirs) or is_imported(ours)
    return theirs.kind == "foreign" or (theirs.kind == "log" and not Path(theirs.given).is_dir())  # perhaps of goldens


def _compare_log(what: CompareOptions, judge: JudgeOptions, ours: "Side", theirs: "Side | None") -> ExitCode:
    from harness.cli.requests import read
    from harness.compare.foreign import OF_BRIDGE, ForeignRequest, compare_foreign
    from harness.compare.show import followed, foreign_page
    from harness.imports.sides import side_of
    from harness.judge.compare import WindowOptions
    from harness.judge.gate import Thresholds
    from harness.records.gating import GateOptions
    from harness.show.answer import answer

    gate = read(GateOptions, judge)
    _require_possible(what, judge, ours, theirs)
    request = ForeignRequest(
        ours=ours,
        golden=theirs or side_of(str(judge.golden_values_path)),
        window=read(WindowOptions, judge),
        thresholds=Thresholds(
            OF_BRIDGE.time if gate.timing_threshold is None else gate.timing_threshold,
            OF_BRIDGE.memory if gate.memory_threshold is None else gate.memory_threshold,
        ),
        fail_on_improvement=gate.fail_on_improvement,
    )
    found = followed(request) if what.follow else compare_foreign(request)
    answer(lambda: found, lambda: foreign_page(found), as_json=what.as_json)
    return ExitCode(found.exit_code)


def _require_possible(what: CompareOptions, judge: JudgeOptions, ours: "Side", theirs: "Side | None") -> None:
    """BadRequestError names all options that a log does not have, or that conflict."""
    from harness.foreign.logs.sources import is_stream

    problems = Problems()
    if theirs and judge.golden_values_path:
        problem = f"{theirs.given} and --golden_values_path: both name the golden values"
        problems.add(problem, "give only one of them")
    if not (theirs or judge.golden_values_path):
        problems.add(f"{ours.given}: a log, and nothing to compare it with", "name B: a log, a run or golden values")
    if judge.accept_differences:
        problem = "--accept_difference: a log does not contain its hardware and software"
        problems.add(problem, "leave the option out: mbr-perf does not check these for a log")
    if what.repeat:
        problems.add(f"--repeat beside {ours.given}: is for runs only", "name a folder that holds all runs")
    if what.follow and (ours.kind == "run" or any(map(is_stream, ours.paths))):
        problems.add(f"--follow: {ours.given} is no log file that grows", "name a log file")
    problems.raise_if_any()


def _compare_run(what: CompareOptions, runs: tuple[str, ...], golden: str | None, judge: JudgeOptions) -> ExitCode:
    from harness.cli.requests import read
    from harness.judge.compare import WindowOptions, compare_stored
    from harness.measure.result import compare_page
    from harness.measure.values import compare_document
    from harness.records.gating import GateOptions
    from harness.show.answer import answer

    every, gate, window = (*runs, *(what.repeat or ())), read(GateOptions, judge), read(WindowOptions, judge)
    verdict = compare_document(*compare_stored(every, golden, gate, window, what.results_dir))
    answer(lambda: verdict, lambda: compare_page(verdict), as_json=what.as_json)
    return ExitCode(verdict.exit_code)
