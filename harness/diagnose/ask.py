"""`mbr-perf diagnose`: why a job failed, and what to try next."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import completion
from harness.cli.commands import takes
from harness.cli.options import ExperimentOptions, Json, Results, flag, options

if TYPE_CHECKING:
    from harness.diagnose.run import DiagnoseRequest
    from harness.foreign.logs.sources import Passage
    from harness.resolve.recipe import Request


# fmt: off
@options()
class DiagnoseOptions:
    """The job that failed."""

    paths: Annotated[list[str], typer.Argument(metavar="PATH...", autocompletion=completion.stored,
        help="A run (folder or id), or logs of one job (files, folders, - for stdin).")]
    no_plan: Annotated[bool, flag("Skip the prediction, which takes seconds.")] = False
    results_dir: Results = None
    as_json: Json = False
# fmt: on


@takes(DiagnoseOptions, ExperimentOptions)
def diagnose(what: DiagnoseOptions, asked: ExperimentOptions) -> None:
    """Say why a job failed: the kind of failure, the rank, the time, how sure that is, and the next experiment.

    Exit codes: 0 a diagnosis, also if memory is not the cause; 2 a wrong request; 6 no conclusion; 130 after Ctrl-C,
    with an answer from the logs read so far.
    """
    from harness.diagnose.run import diagnosed
    from harness.diagnose.show import diagnosis_page
    from harness.launch.environment import this_host
    from harness.show.answer import answer

    found = diagnosed(_request(what, asked), this_host())
    answer(lambda: found, lambda: diagnosis_page(found), as_json=what.as_json)
    raise typer.Exit(found.exit_code)


def _with_gpu(request: "Request", paths: list[str], passage: "Passage") -> "Request":
    from harness.errors import BadRequestError
    from harness.launch.environment import this_host
    from harness.measure.understanding import assumed_gpu
    from harness.units import sentence

    try:
        gpu, note = assumed_gpu(paths, this_host())
    except BadRequestError:  # several types fit, or the reader of the whole log reports what is wrong with it
        return request
    if gpu == "cpu":
        return request
    passage.notes.append(f"{sentence(note)}.")
    return replace(request, gpu=gpu)


def _request(what: DiagnoseOptions, asked: ExperimentOptions) -> "DiagnoseRequest":
    from harness.cli.requests import experiment_request, given_options
    from harness.diagnose.run import DiagnoseRequest
    from harness.diagnose.values import NO_PREDICTION
    from harness.errors import BadRequestError
    from harness.foreign.logs.sources import Passage
    from harness.measure.logged import logged_arguments
    from harness.show.progress import LogProgress

    request = experiment_request(asked)
    given = typed = given_options(asked, but=())
    passage = Passage(on_progress=LogProgress())
    logged = logged_arguments(what.paths)
    if not request.gpu and (logged or request.job_name):
        request = _with_gpu(request, what.paths, passage)
        given = [*given, f"-g {request.gpu}"] if request.gpu else given
    if given == ["--env"] and not request.job_name:
        given = []
    if given and not request.job_name and not (request.gpu and logged):
        remedy = "-mr RECIPE, or the file of your job, e.g. --bridge_config FILE"
        if not request.gpu:
            raise BadRequestError(f"{', '.join(given)} without a recipe", remedy=f"add {remedy}")
        passage.notes.append(
            f"{NO_PREDICTION}the log prints no settings. {', '.join(given)}: ignored without {remedy}."
        )
        given = []
    return DiagnoseRequest(
        paths=tuple(what.paths),
        asked=request if given else None,
        env=request.env,
        given=tuple(typed),
        results_dir=what.results_dir,
        plans=not what.no_plan,
        passage=passage,
    )
