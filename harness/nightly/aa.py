"""Plans and judges the A/A of a night: one setting under two labels, which should not differ."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from harness.errors import BadRequestError, nearest
from harness.experiment.experiment import MIN_STEPS
from harness.judge.derive import combine, derive
from harness.judge.gate import Verdict, default_thresholds
from harness.judge.plausible import doubts_of
from harness.judge.statistics import of_variances
from harness.nightly.memory import judge_memory
from harness.nightly.values import AA_ALPHA, AaFinding, AaVerdict, CaseRun
from harness.predict.flops import model_flops_per_step
from harness.records.metrics import BY_NAME, METRICS, GateKind, Metric, Metrics
from harness.records.night import AaPlan, Case, NightPlan, PlannedCase, RefusedCase, aa_label
from harness.records.run import RunRecord
from harness.units import counted, first_line, format_percent, format_share

MAX_PAIRS = 50
"""More pairs cost more time than they add certainty: 50 find a difference of half the noise of one run."""


MIN_PAIRS = 3
"""Fewer find only gross differences: two pairs find ten times the noise."""

SMALLEST_EFFECT = 0.02
"""A smaller difference of two builds does not matter, however sure it is; a threshold below it takes its place."""

_PROCESSOR_FLOPS = 1e11  # FLOP/s of a rank on the CPU, roughly: a suite may hold both

_TOO_SHORT = f"in its window, at least {MIN_STEPS} are needed"


@dataclass(frozen=True)
class AaRequest:
    """An A/A of so many pairs, of the named case or of the cheapest one."""

    case: str = ""
    num_pairs: int = 4


def aa_problems(asked: AaRequest | None, names: Sequence[str]) -> list[BadRequestError]:
    """Return the problems of the request for cases with these ``names``; none are known if the suite has faults."""
    if asked is None:
        return []
    remedy = f"{MAX_PAIRS} pairs already find a difference of half the noise of one run"
    found = count_problems("--aa_pairs", asked.num_pairs, remedy)
    if asked.case and names and asked.case not in names:
        remedy = nearest(asked.case, names)
        found.append(BadRequestError(f"--aa_case {asked.case}: not among the cases of this night", remedy=remedy))
    return found


def count_problems(option: str, num_pairs: int, remedy: str) -> list[BadRequestError]:
    """Return the problem of a number of pairs, if it has one."""
    if MIN_PAIRS <= num_pairs <= MAX_PAIRS:
        return []
    return [BadRequestError(f"{option} {num_pairs} must be {MIN_PAIRS} to {MAX_PAIRS}", remedy=remedy)]


def with_aa(plan: NightPlan, asked: AaRequest | None) -> NightPlan:
    """Add the requested A/A to the plan: of the named case, or of the cheapest case that can be measured.

    BadRequestError if no case can run as the A/A.
    """
    if asked is None:
        return plan
    unfit = {case.name: _unfit(case) for case in plan.cases}
    if asked.case and unfit[asked.case]:
        message = f"--aa_case {asked.case}: {unfit[asked.case]}"
        raise BadRequestError(message, remedy=f"name another case{_more_steps(unfit[asked.case])}")
    fit = [case for case in plan.planned if not unfit[case.name]]
    if not fit:
        reasons = "\n  ".join(f"{name}: {why}" for name, why in unfit.items())
        remedy = f"leave --aa out, or add a case{_more_steps(reasons)}"
        raise BadRequestError(f"--aa: no case can run as the A/A:\n  {reasons}", remedy=remedy)
    name = asked.case or min(fit, key=_cost).name
    return plan.model_copy(update={"aa": AaPlan(case=name, num_pairs=asked.num_pairs)})


def _unfit(case: Case) -> str:
    if isinstance(case, RefusedCase):
        return f"refused: {case.refused}"
    if case.expected and case.expected.outcome in ("oom", "failed"):
        return f"expected to end as {case.expected.outcome}"
    start, end = case.spec.measure.window
    if end - start < MIN_STEPS:
        return f"{counted(end - start, 'step')} {_TOO_SHORT}"
    return ""


def _more_steps(why: str) -> str:
    return ", or give a case more steps: max_steps in its request" * (_TOO_SHORT in why)


def _cost(case: PlannedCase) -> float:
    """Return the expected GPU seconds at the GPUs' peak: known for every case, without a prediction."""
    spec, row = case.spec, case.spec.gpu_type
    peak = row.peak_flops.get(spec.precision.peak) or max(row.peak_flops.values(), default=_PROCESSOR_FLOPS)
    return spec.measure.max_steps * model_flops_per_step(spec) / peak


Sides = tuple[list[Metrics], list[Metrics]]
"""Of the first label and of the second."""


def judge_aa(case: Case, runs: Sequence[CaseRun], numbers: range) -> AaVerdict:
    """Judge the A/A of ``case``, whose ``runs`` have these ``numbers``; incomplete or not usable, it does not hold."""
    num_pairs = len(numbers) // 2
    fault = fault_of(runs, numbers)
    if fault:
        return AaVerdict(case.name, num_pairs, tuple(runs), doubts={"time": f"tonight's own A/A {fault}"})
    like, sides = sides_of(runs, numbers)
    findings = tuple(_findings(case, like, sides))
    return AaVerdict(case.name, num_pairs, tuple(runs), findings, _doubts(findings))


def sides_of(runs: Sequence[CaseRun], numbers: range) -> tuple[RunRecord, Sides]:
    """Return the first run, and the figures of both sides of complete pairs, which run as A A' A' A."""
    records = {run.number: run.record for run in runs if run.record is not None}
    sides: Sides = ([], [])
    for place, number in enumerate(numbers):
        sides[aa_label(place) != "A"].append(derive(records[number]))
    return records[numbers.start], sides


def judged_metrics(
    case: Case, like: RunRecord, sides: Sides, num_timed: int
) -> Iterable[tuple[Metric, list[float | None], list[float | None], float]]:
    """Yield each gated metric that some run has, its figures on both sides, and the threshold of ``num_timed`` runs."""
    for metric in METRICS:
        first, second = ([metric.read(metrics) for metrics in side] for side in sides)
        if metric.gate is None or all(value is None for value in (*first, *second)):
            continue
        limit = default_thresholds(like.spec, num_timed if metric.gate == "time" else len(first)).of(metric.gate)
        yield metric, first, second, limit if metric.gate == "exact" else case.thresholds.get(metric.name, limit)


def fault_of(runs: Sequence[CaseRun], numbers: range) -> str:
    """Say why the runs cannot be compared; empty if they can."""
    done = {run.number for run in runs if run.record is not None and run.record.status != "interrupted"}
    for run in runs:
        if fault := _ended_badly(run):
            return f"failed: run {run.number}: {fault}"
    if not done.issuperset(numbers):
        return f"is incomplete: {len(done)} of {len(numbers)} runs are done"
    return next((text for run in runs if run.record and (text := _unusable(run.record, run.number))), "")


def _ended_badly(run: CaseRun) -> str:
    if run.cancelled:
        return run.cancelled
    if run.record is None or run.record.status in ("ok", "interrupted"):
        return ""
    failure = first_line(run.record.failure, run.record.status)
    return f"out of memory: {failure}" if run.record.status == "oom" else failure


def _unusable(record: RunRecord, number: int) -> str:
    metrics = derive(record)
    if doubts := doubts_of(record, metrics):
        return f"is not usable: run {number} is suspect: {'; '.join(doubts)}"
    problem = metrics.problems.get("tflops_per_gpu")
    return f"is not usable: run {number}: {problem}" if problem else ""


def _findings(planned: Case, like: RunRecord, sides: Sides) -> Iterable[AaFinding]:
    for metric, first, second, limit in judged_metrics(planned, like, sides, planned.repeats):
        is_time = metric.gate == "time"
        yield _time(metric, first, second, limit) if is_time else _repeating(metric, second, sides, limit)


def _time(metric: Metric, first: Sequence[float | None], second: Sequence[float | None], threshold: float) -> AaFinding:
    limit = min(SMALLEST_EFFECT, threshold)
    a, b = ([value for value in side if value is not None] for side in (first, second))
    if len(a) < len(first) or len(b) < len(second):
        return AaFinding(metric.name, None, None, None, None, None, limit, holds=False)
    base, degrees = fmean(a), len(a) + len(b) - 2
    noise = (variance(a) * (len(a) - 1) + variance(b) * (len(b) - 1)) / degrees  # one noise: both have one setting
    found = of_variances(fmean(b) - base, [(noise * (1 / len(a) + 1 / len(b)), degrees)])
    change, visible = found.difference / base, found.half_width(1 - AA_ALPHA) / base
    differs = abs(change) > limit and found.p_value <= AA_ALPHA
    is_blind = not differs and visible > threshold
    return AaFinding(
        metric.name,
        base,
        fmean(b),
        change,
        found.p_value,
        math.sqrt(noise) / fmean((*a, *b)),
        limit,
        not differs and not is_blind,
        visible=visible,
        threshold=threshold,
        is_blind=is_blind,
    )


def _repeating(metric: Metric, second: Sequence[float | None], sides: Sides, limit: float) -> AaFinding:
    """Judge peaks and counted work: compare A' with the worst of A, as a case with its golden."""
    a, b = (metric.read(combine(side)) for side in sides)
    if a is None:
        return AaFinding(metric.name, a, b, None, None, None, limit, holds=False)
    judged = judge_memory(metric, second, b, a, limit)
    return AaFinding(metric.name, a, b, judged.change, None, None, limit, judged.verdict is Verdict.PASS)


def _doubts(findings: Iterable[AaFinding]) -> dict[GateKind, str]:
    found: dict[GateKind, str] = {}
    for finding in findings:
        metric = BY_NAME[finding.metric]
        if metric.gate is not None and not finding.holds:
            found.setdefault(metric.gate, f"tonight's own A/A {_doubt(metric, finding)}")
    return found


def _doubt(metric: Metric, finding: AaFinding) -> str:
    """Return ``differs: TFLOP/s/GPU by +4.2 % (p 0.0021)``."""
    if finding.change is None:
        return f"is not usable: some runs have no {metric.title}"
    if finding.is_blind and finding.visible is not None and finding.threshold is not None:
        shows = f"it can only show a change of {metric.title} of {format_share(finding.visible)} or more"
        return f"is too noisy: {shows}, and the threshold is {format_share(finding.threshold)}"
    p_value = "" if finding.p_value is None else f" (p {finding.p_value:.2g})"
    return f"differs: {metric.title} by {format_percent(finding.change)}{p_value}"
