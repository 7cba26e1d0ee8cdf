"""All that one `mbr-perf nightly` asks for, and which case of a night is its A/A."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import BadRequestError
from harness.judging.window import MIN_STEPS
from harness.night.aa import MAX_PAIRS
from harness.planning.flops import model_flops_per_step
from harness.recipes.problems import nearest
from harness.recipes.recipe import Request
from harness.records.batches import BatchLaunch
from harness.records.job import SlurmOptions
from harness.records.night import AaPlan, Case, NightPlan, PlannedCase, RefusedCase
from harness.run.understanding import RunRequest
from harness.units import counted

MIN_PAIRS = 3
"""Fewer would find no difference but a gross one: with two pairs, one of ten times the noise."""

_PROCESSOR_FLOPS = 1e11  # FLOP/s of a rank on the CPU, roughly: a suite may hold both

_TOO_SHORT = f"in its window, at least {MIN_STEPS} are needed"


@dataclass(frozen=True)
class AaRequest:
    """An A/A of so many pairs, of the named case or of the cheapest one."""

    case: str = ""
    num_pairs: int = 4


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
        return RunRequest(asked=asked, launcher=self.launch.launcher, pass_env=self.launch.pass_env)


def aa_problems(asked: AaRequest | None, names: Sequence[str]) -> list[BadRequestError]:
    """What is wrong with the request, of the cases with these ``names``; none are known where the suite has faults."""
    found = list[BadRequestError]()
    if asked is not None and not MIN_PAIRS <= asked.num_pairs <= MAX_PAIRS:
        remedy = f"{MAX_PAIRS} pairs find half the noise of one run"
        found.append(BadRequestError(f"--aa_pairs {asked.num_pairs} must be {MIN_PAIRS} to {MAX_PAIRS}", remedy=remedy))
    if asked is not None and asked.case and names and asked.case not in names:
        remedy = nearest(asked.case, names)
        found.append(BadRequestError(f"--aa_case {asked.case}: not among the cases of this night", remedy=remedy))
    return found


def with_aa(plan: NightPlan, asked: AaRequest | None) -> NightPlan:
    """The plan with the A/A that is asked for: of the named case, else of the cheapest that can tell anything.

    BadRequestError where there is none.
    """
    if asked is None:
        return plan
    unfit = {case.name: _unfit(case) for case in plan.cases}
    if asked.case and unfit[asked.case]:
        told = f"--aa_case {asked.case}: {unfit[asked.case]}"
        raise BadRequestError(told, remedy=f"name another case{_more_steps(unfit[asked.case])}")
    fit = [case for case in plan.planned if not unfit[case.name]]
    if not fit:
        told = "\n  ".join(f"{name}: {why}" for name, why in unfit.items())
        remedy = f"leave --aa out, or add a case{_more_steps(told)}"
        raise BadRequestError(f"--aa: no case can be the A/A:\n  {told}", remedy=remedy)
    name = asked.case or min(fit, key=_cost).name
    return plan.model_copy(update={"aa": AaPlan(case=name, num_pairs=asked.num_pairs)})


def _unfit(case: Case) -> str:
    """Why times of its runs will not be known; empty where they will."""
    if isinstance(case, RefusedCase):
        return f"refused: {case.refused}"
    if case.expected and case.expected.outcome in ("oom", "failed"):
        return f"expected to end as {case.expected.outcome}"
    start, end = case.spec.measure.window
    if end - start < MIN_STEPS:
        return f"{counted(end - start, 'step')} {_TOO_SHORT}"
    return ""


def _more_steps(why: str) -> str:
    """What else helps where a window is too short."""
    return ", or give a case more steps: max_steps in its request" * (_TOO_SHORT in why)


def _cost(case: PlannedCase) -> float:
    """Expected time on all its GPUs together, at their peak: known of every case, without a prediction."""
    spec, row = case.spec, case.spec.gpu_type
    peak = row.peak_flops.get(spec.precision.peak) or max(row.peak_flops.values(), default=_PROCESSOR_FLOPS)
    return spec.measure.max_steps * model_flops_per_step(spec) / peak
