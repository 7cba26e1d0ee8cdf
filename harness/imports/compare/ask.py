"""`mbr-perf compare`: judge a run that was measured earlier, or somebody's training log."""

import shlex

import typer

from harness.asking.options import JudgeOptions, takes
from harness.imports.compare.options import CompareOptions, ForeignOptions, LossOptions


@takes(CompareOptions, ForeignOptions, JudgeOptions, LossOptions)
def compare(what: CompareOptions, foreign: ForeignOptions, judge: JudgeOptions, loss: LossOptions) -> None:
    """Hold a run against golden values, or against another run, and exit with the verdict.

    With --log: a training log of Megatron-Bridge or Megatron-LM against golden values of theirs.
    """
    from harness.asking.requests import given_options
    from harness.errors import BadRequestError

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


def _instead(what: CompareOptions, foreign: ForeignOptions) -> str:
    """A golden that was meant for a run stands behind it."""
    log = "name a log with --log FILE"
    if what.run is None or what.golden is not None or foreign.foreign_golden is None:
        return log
    return f"of a run: mbr-perf compare {shlex.quote(what.run)} {shlex.quote(str(foreign.foreign_golden))}; else {log}"


def _compare_log(what: CompareOptions, foreign: ForeignOptions, judge: JudgeOptions, loss: LossOptions) -> None:
    from harness.errors import BadRequestError
    from harness.imports.compare.run import compare_foreign, foreign_request

    if what.run is not None or what.repeat:
        raise BadRequestError(
            f"RUN {what.run or what.repeat} and --log are two answers to one question; give one",
            remedy="further logs of the same job: --log a.log b.log",
        )
    answer = compare_foreign(foreign_request(foreign, loss, judge))
    if what.as_json:
        from harness.imports.compare.document import foreign_document
        from harness.showing import json

        json.answer(foreign_document(answer))
    else:
        from harness.imports.compare.show import foreign_page
        from harness.showing.terminal import show_page

        show_page(foreign_page(answer.log, answer.comparison, (answer.outcome, answer.exit_code)))
        if foreign.actuals:
            print(f"Written: {answer.actuals}" if answer.actuals else f"Not written, no iteration: {foreign.actuals}")
    raise typer.Exit(int(answer.exit_code))


def _compare_run(what: CompareOptions, run: str, judge: JudgeOptions) -> None:
    from harness.asking.requests import gate_options, window_options
    from harness.errors import BadRequestError
    from harness.judging.compare import compare_runs, find_reference
    from harness.judging.gate import comparison_outcome
    from harness.records.other_kinds import read_only_run

    gate = gate_options(judge)
    if what.golden is not None and gate.golden_values_path is not None:
        raise BadRequestError(
            f"GOLDEN {what.golden} and --golden_values_path {gate.golden_values_path} are two answers; give one"
        )
    gate = gate.model_copy(update={"require_golden": gate.require_golden or what.golden is not None})
    records = tuple(read_only_run(reference, what.results_dir) for reference in (run, *(what.repeat or ())))
    search = find_reference(what.golden, records[0], gate, what.results_dir)
    metrics, comparison = compare_runs(records, search, gate, window_options(judge))
    verdict = comparison_outcome(comparison, fail_on_improvement=gate.fail_on_improvement)
    if what.as_json:
        from harness.run.document import compare_document
        from harness.showing import json

        json.answer(compare_document(records, metrics, comparison, verdict))
    else:
        from harness.run.result import print_compare
        from harness.showing.printing import Console

        print_compare(Console(), records, comparison, verdict)
    raise typer.Exit(int(verdict[1]))
