"""From the options of `mbr-perf nightly` to the values that the logic takes."""

from typing import TYPE_CHECKING

from harness.cli.asking import given_options, launch_words
from harness.cli.options import LocalLaunchOptions
from harness.errors import BadRequestError
from harness.report.night_outputs import Outputs, require_outputs
from harness.runner.night_request import NightRequest

if TYPE_CHECKING:
    from harness.cli.nightly import NightJudgeOptions, NightOutputOptions, SuiteOptions

_MAY_ACCOMPANY = frozenset({"resume", "results_dir"})


def night_request(what: "SuiteOptions", judge: "NightJudgeOptions", launch: LocalLaunchOptions) -> NightRequest:
    """All of `mbr-perf nightly` as one value. BadRequestError without a suite."""
    if what.suite is None:
        raise BadRequestError("nightly needs a suite", remedy="mbr-perf nightly SUITE, or --resume NIGHT")
    return NightRequest(
        suite=what.suite,
        only=tuple(what.only or ()),
        shard=what.shard,
        confirm=what.confirm,
        retries=what.retries,
        launch=launch_words(launch),
        golden_dir=judge.golden_dir,
        recipes_dir=what.recipes_dir,
        results_dir=launch.results_dir,
        accept_differences=tuple(judge.accept_difference or ()),
        fail_on_improvement=judge.fail_on_improvement,
    )


def night_outputs(output: "NightOutputOptions") -> Outputs:
    """Where reports go beside the night's folder. BadRequestError, all at once, for places that cannot be written."""
    outputs = Outputs(
        junit=output.junit,
        step_summary=output.step_summary,
        jsonl=output.jsonl,
        prometheus=output.prometheus,
        html=output.html,
    )
    require_outputs(outputs)
    return outputs


def require_nothing_else(*groups: object) -> None:
    """BadRequestError naming every option that says again what a resumed night has decided already."""
    given = given_options(*groups, but=_MAY_ACCOMPANY)
    if given:
        raise BadRequestError(
            f"--resume takes everything from the night; {', '.join(given)} would change it",
            remedy="only --results_dir and the options of outputs go with it; or start a new night",
        )
