"""All that one `mbr-perf nightly` asks for, and how it is read from the options."""

from dataclasses import dataclass, field
from pathlib import Path

from harness.asking.options import LocalLaunchOptions, SlurmLaunchOptions
from harness.asking.requests import batch_launch, require_nothing_else, slurm_request
from harness.errors import BadRequestError, Problems
from harness.judging.likeness import impossible_names
from harness.launch.slurm.job import option_problems
from harness.night.aa import AaRequest, aa_problems
from harness.night.options import NightJudgeOptions, NightOutputOptions, SuiteOptions
from harness.night.reports import Outputs, require_outputs
from harness.recipes.recipe import Request
from harness.recipes.suite import Suite
from harness.recipes.suite_file import read_suite
from harness.recipes.suite_listing import only, shard
from harness.records.batches import BatchLaunch, LaunchSettings
from harness.records.job import SlurmOptions
from harness.run.understanding import RunRequest, launcher_problems


@dataclass(frozen=True, kw_only=True)
class NightRequest:
    """Which cases of which suite, and how their runs are launched, repeated and judged.

    ``suite``: a name or a path; ``only``: patterns of case names; ``shard``: ``i/n``, empty for all. ``golden_dir`` and
    ``results_dir`` None: the usual ones. ``slurm``: runs are jobs of a cluster, not of this machine. ``aa`` None: no A/A.
    """

    suite: str
    only: tuple[str, ...] = ()
    shard: str = ""
    confirm: int = 2
    retries: int = 1
    launch: BatchLaunch = field(default_factory=BatchLaunch)
    slurm: SlurmOptions | None = None
    golden_dir: Path | None = None
    recipes_dir: Path | None = None
    results_dir: Path | None = None
    accept_differences: tuple[str, ...] = ()
    fail_on_improvement: bool = False
    aa: AaRequest | None = None

    def run_request(self, asked: Request) -> RunRequest:
        """One case's request, as the checks of `mbr-perf run` take it."""
        return RunRequest(
            asked=asked, launch=LaunchSettings(launcher=self.launch.launcher, pass_env=self.launch.pass_env)
        )


_MAY_ACCOMPANY = frozenset({"resume", "results_dir"})


def night_asked(
    what: SuiteOptions,
    judge: NightJudgeOptions,
    launch: LocalLaunchOptions,
    slurm: SlurmLaunchOptions,
    output: NightOutputOptions,
) -> tuple[NightRequest | None, Outputs]:
    """The night that is asked for, None for one that is resumed, and where its reports go.

    BadRequestError with everything that is wrong with the options, the suite and its cases.
    """
    problems, request = Problems(), None
    outputs = Outputs(junit=output.junit, step_summary=output.step_summary, html=output.html)
    with problems.collecting():
        require_outputs(outputs)
    if what.resume is None:
        request = _request(what, judge, launch, slurm, problems)
    else:
        with problems.collecting():
            may = "--results_dir and the options of outputs"
            require_nothing_else("night", may, (what, judge, launch, slurm), _MAY_ACCOMPANY)
    if problems.found and request is not None:
        with problems.collecting():
            chosen_suite(request)
    problems.raise_if_any()
    return request, outputs


def _request(
    what: SuiteOptions,
    judge: NightJudgeOptions,
    launch: LocalLaunchOptions,
    slurm: SlurmLaunchOptions,
    problems: Problems,
) -> NightRequest | None:
    """The request as far as it can be read; None without a suite. ``problems`` takes what is wrong with it."""
    on_slurm, words = None, BatchLaunch(launcher=launch.launcher, replay_from=launch.replay_from)
    if what.suite is None:
        problems.add("nightly needs a suite", "mbr-perf nightly SUITE, or --resume NIGHT")
    if slurm.detach or slurm.no_submit:
        problems.add(
            "a night decides by its runs which others are due: it waits for its jobs",
            "leave --detach and --no_submit out; scripts/nightly.sbatch runs the night itself as a job",
        )
    says_which_aa = bool(judge.aa_case) or judge.aa_pairs is not None
    if not judge.aa and says_which_aa:
        problems.add("--aa_case and --aa_pairs say which A/A: there is none", "add --aa")
    with problems.collecting():
        on_slurm = slurm_request(launch.launcher, slurm, {})
    with problems.collecting():
        words = batch_launch(launch)
    if what.suite is None:
        return None
    num_pairs = AaRequest.num_pairs if judge.aa_pairs is None else judge.aa_pairs
    return NightRequest(
        suite=what.suite,
        only=tuple(what.only or ()),
        shard=what.shard,
        confirm=what.confirm,
        retries=what.retries,
        launch=words.model_copy(update={"launcher": "torchrun"}) if launch.launcher == "slurm" else words,
        slurm=on_slurm.options if on_slurm else None,
        golden_dir=judge.golden_dir,
        recipes_dir=what.recipes_dir,
        results_dir=launch.results_dir,
        accept_differences=tuple(judge.accept_difference or ()),
        fail_on_improvement=judge.fail_on_improvement,
        aa=AaRequest(judge.aa_case, num_pairs) if judge.aa or says_which_aa else None,
    )


MOST_EXTRA_RUNS = 100
"""Of one case, to confirm or to retry: more than that is a slip of the keyboard, and may keep the machine for days."""


def chosen_suite(request: NightRequest) -> Suite:
    """The cases that this night is about. BadRequestError with every fault of the suite and of the options."""
    problems, chosen = Problems(), Suite(name="", title="", cases=())
    for name in ("confirm", "retries"):
        if not 0 <= getattr(request, name) <= MOST_EXTRA_RUNS:
            told = f"--{name} {getattr(request, name)} must be 0 to {MOST_EXTRA_RUNS}"
            problems.add(told, "it is the runs of one case beyond its repeats")
    if request.golden_dir is not None and not request.golden_dir.is_dir():
        problems.add(f"--golden_dir {request.golden_dir}: no such folder")
    problems.found += impossible_names(request.accept_differences)
    problems.found += _launch_problems(request.launch)
    if request.slurm is not None:
        problems.found += option_problems(request.slurm, request.launch.pass_env)
    with problems.collecting():
        chosen = read_suite(request.suite, request.recipes_dir)
        chosen = only(chosen, request.only)
    if request.shard:
        with problems.collecting():
            chosen = shard(chosen, request.shard)
    problems.found += aa_problems(request.aa, [case.name for case in chosen.cases])
    problems.raise_if_any()
    return chosen


def _launch_problems(launch: BatchLaunch) -> list[BadRequestError]:
    """What is wrong with the launch of every case alike."""
    found = [*launcher_problems(launch), *launch.problems]
    if launch.launcher == "replay" and launch.replay_from is None:
        found.append(BadRequestError("--launcher replay: needs recorded runs", remedy="add --from RUN"))
    return found
