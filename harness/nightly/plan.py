"""The request of `mbr-perf nightly`, and the plan of a night: its cases, and which of them cannot run."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.batch.batch import Draft, DueRun, ask_megatron, drafted, stamp
from harness.errors import BadRequestError, NoOldBuildError, Problems
from harness.experiment.gpu import GPUS
from harness.judge.likeness import impossible_names
from harness.launch.detection import one_look
from harness.launch.environment import Host
from harness.launch.jobs import option_problems
from harness.launch.machine import software_for
from harness.launch.required import require_machine
from harness.measure.checking import in_one_sentence
from harness.measure.prediction import KeptPrediction, cached_prediction
from harness.measure.understanding import RunRequest, launcher_problems
from harness.nightly.against import LAST_GOOD, find_against
from harness.nightly.batch import unstarted_night
from harness.records.batches import BatchLaunch
from harness.records.gating import LaunchSettings
from harness.records.goldens import require_golden_dir
from harness.records.job import JobOptions
from harness.records.night import Case, ExpectedFailureRecord, NightPlan, PlannedCase, RefusedCase
from harness.resolve.recipe import Request
from harness.resolve.suite import Suite, SuiteCase, only
from harness.resolve.suite_file import read_suite
from harness.units import counted, grouped


@dataclass(frozen=True, kw_only=True)
class NightRequest:
    """Which cases of which suite, and how to run and judge them. ``against``: the old build, or ``last-good``."""

    suite: str
    only: tuple[str, ...] = ()
    engine: str | None = None
    confirm: int = 3
    retries: int = 1
    launch: BatchLaunch = field(default_factory=BatchLaunch)
    cluster: JobOptions | None = None
    golden_dir: Path | None = None
    recipes_dir: Path | None = None
    results_dir: Path | None = None
    accept_differences: tuple[str, ...] = ()
    fail_on_improvement: bool = False
    against: str = ""
    num_pairs: int = 5

    def run_request(self, asked: Request) -> RunRequest:
        """Return the request of one case, as the checks of `mbr-perf run` take it."""
        return RunRequest(
            asked=replace(asked, engine=self.engine),
            starts=True,
            launch=LaunchSettings(launcher=self.launch.launcher, pass_env=self.launch.pass_env),
        )


_EXTRA_RUNS = (0, 100, "it counts the extra runs of one case")
_COUNTS = {
    "confirm": ("--confirm", *_EXTRA_RUNS),
    "retries": ("--retries", *_EXTRA_RUNS),
    "num_pairs": ("--pairs", 5, 50, "5 decide 3.8 % where runs differ by 1.3 %, and fewer no 5 %"),
}
"""By field: its option, the least and the most. n pairs decide t(0.995, n - 1) x √(2 / n) times what runs differ by:
at the 1.3 % of the goals 10.5, 5.4 and 3.8 % for 3, 4 and 5 pairs, of which 5 % must be decided."""


def chosen_suite(request: NightRequest) -> Suite:
    """Return the cases that this night is about. BadRequestError with every fault of the suite and of the options."""
    problems, chosen = Problems(), Suite(name="", title="", cases=())
    for name, (option, least, most, remedy) in _COUNTS.items():
        if not least <= (number := getattr(request, name)) <= most:
            problems.add(f"{option} {number} must be {least} to {most}", remedy)
    problems.tried(lambda: require_golden_dir(request.golden_dir))
    problems.found += impossible_names(request.accept_differences)
    problems.found += [*launcher_problems(request.launch), *request.launch.problems]
    if request.launch.launcher == "replay" and request.launch.replay_from is None:
        problems.add("--launcher replay: needs recorded runs", "add --from RUN")
    if request.cluster is not None:
        problems.found += option_problems(request.cluster, request.launch.pass_env)
    with problems.collecting():
        chosen = read_suite(request.suite, request.recipes_dir)
        chosen = only(chosen, request.only)
    problems.raise_if_any()
    return chosen


CaseDraft = Draft[SuiteCase]

_REPLAYED = "replayed: there is no measurement to compare a prediction with"


def draft_cases(cases: Sequence[SuiteCase], request: NightRequest, host: Host) -> tuple[CaseDraft, ...]:
    """Return every case. A case that a rule or its recipe forbids is refused; the others go on."""
    return tuple(
        drafted(
            case,
            request.run_request(case.request),
            host,
            lambda finding: f"{finding.id}: {finding.message} ({finding.fix})",
        )
        for case in cases
    )


def planned_case(draft: CaseDraft, request: NightRequest, host: Host) -> Case:
    """Return the planned case, with a prediction if cached traces suffice; else a run makes it."""
    case, checked, expected = draft.asked, draft.checked, draft.asked.expected
    until = expected and ExpectedFailureRecord(
        outcome=expected.outcome, until=expected.until.isoformat(), reason=expected.reason
    )
    words: dict[str, object] = {
        **{name: getattr(case, name) for name in ("name", "repeats", "thresholds", "owner", "is_golden_required")},
        **draft.words,
        "expected": until,
        "timeout_s": case.timeout_s if request.launch.timeout_s is None else request.launch.timeout_s,
    }
    if draft.problem or checked is None:
        return RefusedCase.model_validate(words | {"refused": draft.problem})
    kept = KeptPrediction(None, _REPLAYED)
    if request.launch.launcher != "replay":
        kept = cached_prediction(checked.spec, checked.software, host)
    return PlannedCase.model_validate(words | {"prediction": kept.prediction, "no_prediction": kept.reason})


@one_look()
def plan_night(request: NightRequest, host: Host, *, starts: bool, waits: Callable[[str], None]) -> NightPlan:
    """Decide everything before the first run. ``starts``: refuse what cannot start here, too. BadRequestError."""
    problems, against, no_pairs, suite = Problems(), None, "", Suite(name="", title="", cases=())
    with problems.collecting():
        suite = chosen_suite(request)
    if request.against:
        try:
            against = find_against(request.against, request.num_pairs, suite, request.results_dir, host)
        except BadRequestError as error:
            if request.against != LAST_GOOD or not isinstance(error, NoOldBuildError):
                problems.found.append(error)
            no_pairs = f"without pairs: {in_one_sentence(error)}"  # a night without them is worth more than none
    suite = problems.having(suite)
    if starts and request.cluster is None and request.launch.launcher == "torchrun":
        for gpu in sorted({case.request.gpu for case in suite.cases} & GPUS.keys()):
            software_for(gpu, host, must_answer=True)
    waits(f"Checking {counted(len(suite.cases), 'case')} of {suite.name}")
    drafts: Sequence[CaseDraft] = draft_cases(suite.cases, request, host)
    unasked = tuple[str, ...]()
    # A job asks megatron-core on its nodes.
    if starts and request.launch.launcher != "replay" and request.cluster is None:
        drafts, unasked = ask_megatron(drafts, host)
    plan = _plan(request, suite, drafts, host)
    notes = (*unasked, *_short_cases(plan), *([no_pairs] if no_pairs else []))
    plan = plan.model_copy(update={"notes": notes, "against": against, "no_pairs": no_pairs})
    return _startable(plan, host) if starts else plan


def _short_cases(plan: NightPlan) -> Iterable[str]:
    """Yield one note for all cases that count the same steps, and too few of them."""
    judged = [case for case in plan.planned if case.expected is None]
    few = grouped((case.spec.measure.too_few_steps(), case.name) for case in judged)
    yield from (f"{', '.join(names)}: {why}" for why, names in few.items() if why)


_ALIKE = (
    "confirm", "retries", "only", "launch", "cluster", "accept_differences", "fail_on_improvement",
)  # fmt: skip


def _plan(request: NightRequest, suite: Suite, drafts: Sequence[CaseDraft], host: Host) -> NightPlan:
    return NightPlan(
        **{name: value for name, value in vars(request).items() if name in _ALIKE},
        night_id="",
        suite=suite.name,
        title=suite.title or suite.name,
        cases=tuple(planned_case(draft, request, host) for draft in drafts),
        software={draft.checked.spec.gpu: draft.checked.software for draft in drafts if draft.checked},
        golden_dir=str(request.golden_dir.absolute()) if request.golden_dir else None,
        python=host.python,
        **stamp(),
    )


def _startable(plan: NightPlan, host: Host) -> NightPlan:
    """Return the plan with cases refused that cannot start here. BadRequestError where that leaves none."""
    problems = {case.name: unable(plan, case, host) for case in plan.planned}
    cases = [
        RefusedCase(**dict(case) | {"refused": in_one_sentence(problem)})
        if (problem := problems.get(case.name))
        else case
        for case in plan.cases
    ]
    if all(case.refused for case in cases):
        reasons = grouped((case.refused, case.name) for case in cases)
        each = (f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
        message = "\n  ".join([f"no case of {plan.suite} can start here:", *each])
        remedy = "change the suite, choose other cases, or run them where their GPUs are (--launcher slurm or kubeflow)"
        raise BadRequestError(message, remedy=remedy)
    return plan.model_copy(update={"cases": tuple(cases)})


def unable(plan: NightPlan, case: PlannedCase, host: Host) -> BadRequestError | None:
    """Say why a case cannot start on this machine, everything at once."""
    problems, nnodes = Problems(), case.spec.num_nodes
    if plan.cluster is None and nnodes > 1 and plan.launch.launcher != "replay":
        return BadRequestError(
            f"{case.spec.num_gpus} GPUs need {nnodes} nodes", remedy="--launcher slurm runs it as a job"
        )
    if plan.cluster is not None and case.sources.get("gpu") == "this machine":
        problems.add(
            "jobs run on other machines, whose GPU mbr-perf cannot detect from here", "name the case's GPU: request.gpu"
        )
    launch = plan.launch
    if nnodes > 1 and plan.cluster is not None:  # only the job knows its first node
        launch = launch.model_copy(update={"nnodes": nnodes, "master_addr": "HEAD"})
    problems.tried(lambda: unstarted_night(plan, host, launch).understood(DueRun(case, 0), Path("RUN")))
    if plan.launch.launcher == "torchrun" and plan.cluster is None:
        with problems.collecting():
            require_machine(case.spec, host, case.spec.ranks_per_node(1), plan.software.get(case.spec.gpu))
    try:
        problems.raise_if_any()
    except BadRequestError as error:
        return error
    return None
