"""`mbr-perf explain`: why a run differs from its golden, a published number, or another run."""

from typing import Annotated

import typer

from harness.cli import completion
from harness.cli.commands import takes
from harness.cli.options import GoldenDir, Json, Results, options


# fmt: off
@options()
class ExplainOptions:
    """The two sides to compare."""

    run: Annotated[str, typer.Argument(metavar="RUN", autocompletion=completion.runs_and_goldens,
        help="A run folder, a record.json, the start of a run's id, or a golden (file or name).")]
    golden: Annotated[str | None, typer.Argument(metavar="GOLDEN", autocompletion=completion.runs_and_goldens,
        help="The reference: a golden or another run. Default: the golden of the run's settings.")] = None
    golden_dir: GoldenDir = None
    results_dir: Results = None
    as_json: Json = False
# fmt: on


@takes(ExplainOptions)
def explain(what: ExplainOptions) -> None:
    """Say why a run or a golden differs from a golden, a published number or another run.

    Lists what both sides recorded and what differs, the likeliest effect first, with the changed metrics that each
    difference may explain. Always exits 0; compare gives the verdict.
    """
    from harness.errors import BadRequestError, Problems
    from harness.explain.causes import explain as explained
    from harness.explain.references import named, stored_golden
    from harness.explain.show import explanation_page
    from harness.records.run import RunRecord
    from harness.show.answer import answer

    problems = Problems()
    first = problems.tried(lambda: named(what.run, what.results_dir, what.golden_dir))
    given = what.golden
    theirs = None if given is None else problems.tried(lambda: named(given, what.results_dir, what.golden_dir))
    ours = problems.having(first)
    if theirs is None:
        if not isinstance(ours.record, RunRecord):
            raise BadRequestError(
                f"{what.run}: a golden alone", remedy="name its reference: mbr-perf explain AFTER BEFORE"
            )
        theirs = stored_golden(ours.record, what.golden_dir)
    found = explained(ours.side(theirs.spec), theirs.side(ours.spec))
    answer(lambda: found, lambda: explanation_page(found), as_json=what.as_json)
