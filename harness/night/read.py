"""From the options of `mbr-perf nightly` to the values that the logic takes."""

from dataclasses import dataclass, replace

from harness.asking.options import LocalLaunchOptions
from harness.asking.requests import launch_words, require_nothing_else
from harness.asking.slurm_options import SlurmLaunchOptions, slurm_request
from harness.night.options import NightJudgeOptions, NightOutputOptions, SuiteOptions
from harness.night.plan import chosen_suite
from harness.night.reports import Outputs, require_outputs
from harness.night.request import AaRequest, NightRequest
from harness.recipes.problems import Problems
from harness.records.batches import BatchLaunch

_MAY_ACCOMPANY = frozenset({"resume", "results_dir"})


@dataclass(frozen=True)
class NightAsked:
    """All that was asked for. ``request`` is None for a night that is resumed."""

    request: NightRequest | None
    outputs: Outputs


def night_asked(
    what: SuiteOptions,
    judge: NightJudgeOptions,
    launch: LocalLaunchOptions,
    slurm: SlurmLaunchOptions,
    output: NightOutputOptions,
) -> NightAsked:
    """The options of `mbr-perf nightly` as one value. BadRequestError with every one that is wrong."""
    problems, request, outputs = Problems(), None, Outputs()
    with problems.collecting():
        outputs = night_outputs(output)
    with problems.collecting():
        if what.resume is None:
            request = night_request(what, judge, launch, slurm)
        else:
            may = "--results_dir and the options of outputs"
            require_nothing_else("night", may, (what, judge, launch, slurm), _MAY_ACCOMPANY)
    if problems.found and what.resume is None and what.suite is not None:
        with problems.collecting():  # what is wrong with the suite and the cases is told with the rest
            chosen_suite(request or _request(what.suite, what, judge, launch, _bare_words(launch)))
    problems.raise_if_any()
    return NightAsked(request, outputs)


def night_request(
    what: SuiteOptions, judge: NightJudgeOptions, launch: LocalLaunchOptions, slurm: SlurmLaunchOptions
) -> NightRequest:
    """Which night is asked for. BadRequestError without a suite, and for options that contradict each other."""
    problems, on_slurm, words = Problems(), None, BatchLaunch()
    if what.suite is None:
        problems.add("nightly needs a suite", "mbr-perf nightly SUITE, or --resume NIGHT")
    if slurm.detach or slurm.no_submit:
        problems.add("a night decides by its runs which others are due: it waits for its jobs",
                     "leave --detach and --no_submit out; scripts/nightly.sbatch runs the night itself as a job")  # fmt: skip
    if not judge.aa and _says_which_aa(judge):
        problems.add("--aa_case and --aa_pairs say which A/A: there is none", "add --aa")
    with problems.collecting():
        on_slurm = slurm_request(launch.launcher, slurm, {})
    with problems.collecting():
        words = launch_words(launch)
    problems.raise_if_any()
    assert what.suite is not None  # else it is a problem
    asked = _request(what.suite, what, judge, launch, words)
    return replace(asked, slurm=on_slurm.options) if on_slurm else asked


def _bare_words(launch: LocalLaunchOptions) -> BatchLaunch:
    """What can be judged of a launch whose limits are none."""
    return BatchLaunch(launcher=launch.launcher, replay_from=str(launch.replay_from) if launch.replay_from else None)


def _request(
    suite: str,
    what: SuiteOptions,
    judge: NightJudgeOptions,
    launch: LocalLaunchOptions,
    words: BatchLaunch,
) -> NightRequest:
    return NightRequest(
        suite=suite,
        only=tuple(what.only or ()),
        shard=what.shard,
        confirm=what.confirm,
        retries=what.retries,
        launch=words.model_copy(update={"launcher": "torchrun"}) if launch.launcher == "slurm" else words,
        golden_dir=judge.golden_dir,
        recipes_dir=what.recipes_dir,
        results_dir=launch.results_dir,
        accept_differences=tuple(judge.accept_difference or ()),
        fail_on_improvement=judge.fail_on_improvement,
        aa=_aa(judge) if judge.aa or _says_which_aa(judge) else None,
    )


def _says_which_aa(judge: NightJudgeOptions) -> bool:
    return bool(judge.aa_case) or judge.aa_pairs is not None


def _aa(judge: NightJudgeOptions) -> AaRequest:
    pairs = AaRequest.num_pairs if judge.aa_pairs is None else judge.aa_pairs
    return AaRequest(judge.aa_case, pairs)


def night_outputs(output: NightOutputOptions) -> Outputs:
    """Where reports go beside the night's folder. BadRequestError, all at once, for places that cannot be written."""
    outputs = Outputs(
        junit=output.junit,
        step_summary=output.step_summary,
        html=output.html,
    )
    require_outputs(outputs)
    return outputs
