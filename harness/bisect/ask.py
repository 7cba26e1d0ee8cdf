"""`mbr-perf bisect`: the commit of megatron-core that made a case worse."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from harness.bisect import LEAST_RUNS, MAX_RUNS, MOST_RUNS
from harness.cli.commands import takes
from harness.cli.options import Json, Results, option, options

if TYPE_CHECKING:
    from harness.bisect.run import BisectRequest


# fmt: off
@options()
class BisectOptions:
    """What got worse, and where."""

    case: Annotated[str | None, typer.Argument(metavar="CASE",
        help="SUITE:CASE, or a run: its folder or the start of its id.")] = None
    good: Annotated[str, option("REV", "A commit before the change.")] = ""
    bad: Annotated[str, option("REV", "A later commit that has it.")] = ""
    repo: Annotated[Path | None, option("FOLDER", "A checkout of Megatron-LM or Megatron-Bridge, or with --pins "
                                                  "any. It is only read.")] = None
    pins: Annotated[str | None, option("FILE", "The repository pins versions in this file (requirements or "
                                               "pyproject.toml).")] = None
    metric: Annotated[str | None, option("NAME", "recompute, memory, work (by tracing) or time. Default: what "
                                                 "differs in a trace, else time.")] = None
    max_runs: Annotated[int | None, typer.Option(metavar="N", min=LEAST_RUNS, max=MOST_RUNS,
        help=f"End undecided after N runs of a bisect by time ({MAX_RUNS}).")] = None
    recipes_dir: Annotated[Path | None, option("DIR", "Directory of recipe families and of suites/.")] = None
    resume: Annotated[str | None, option("BISECT", "Continue: its folder or the start of its id.")] = None
    results_dir: Results = None
    as_json: Json = False
# fmt: on


@takes(BisectOptions)
def bisect(asked: BisectOptions) -> None:
    """Find the commit from which on a case is slower, needs more memory, or recomputes something else.

    Each revision's megatron-core, or what it pins, runs over this environment. First both ends are measured under two
    labels each: a machine on which a revision differs from itself decides nothing. Revisions that cannot run are
    skipped.

    Exit codes: 0 found, 2 wrong request, 3 an end cannot be measured, 6 not decided.
    """
    from harness.bisect.run import resume_bisect, start_bisect
    from harness.bisect.show import bisect_page
    from harness.show.answer import answer

    request = _request(asked)
    if request is None:
        assert asked.resume is not None  # else there is a request
        found = resume_bisect(asked.resume, asked.results_dir, asked.max_runs)
    else:
        found = start_bisect(request)
    answer(lambda: found, lambda: bisect_page(found), as_json=asked.as_json)
    raise typer.Exit(int(found.exit_code))


_MAY_ACCOMPANY = {"resume", "max_runs", "results_dir", "as_json"}


def _request(asked: BisectOptions) -> "BisectRequest | None":
    from harness.bisect.run import BisectRequest
    from harness.bisect.values import Metric
    from harness.cli.requests import read, require_nothing_else
    from harness.errors import Problems

    if asked.resume is not None:
        require_nothing_else("bisect", "--max_runs, --results_dir and --json", (asked,), _MAY_ACCOMPANY)
        return None
    problems = Problems()
    for name, value in (("CASE", asked.case), ("--good", asked.good), ("--bad", asked.bad), ("--repo", asked.repo)):
        if not value:
            problems.add(f"bisect needs {name}", "mbr-perf bisect CASE --good REV --bad REV --repo FOLDER")
    if asked.metric is not None and asked.metric not in get_args(Metric):
        problems.add(f"--metric {asked.metric}: no such metric", f"known: {', '.join(get_args(Metric))}")
    problems.raise_if_any()
    return read(BisectRequest, asked)
