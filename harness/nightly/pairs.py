"""Judges the pairs of a suspicious case: the old and the new build in turn, on the same machines in the same night."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean, stdev

from harness.judge.derive import combine, derive
from harness.judge.gate import Finding, Verdict, compare_values, default_thresholds
from harness.judge.plausible import doubts_of
from harness.judge.statistics import Welch
from harness.nightly.values import CaseFinding, CaseRun, PairFinding, PairsVerdict
from harness.records.metrics import METRICS, Metric, Metrics
from harness.records.night import OLD, Against, Case, pair_label
from harness.records.run import RunRecord
from harness.units import first_line, format_percent, format_share

PAIR_ALPHA = 0.005
"""The largest one-sided p-value at which the difference of the pairs counts as real."""

SMALLEST_EFFECT = 0.02
"""A smaller difference of two builds does not matter, however sure it is; a threshold below it takes its place."""

Sides = tuple[list[Metrics], list[Metrics]]
"""Of the old build and of the new."""


def judge_pairs(case: Case, runs: Sequence[CaseRun], against: Against | None) -> PairsVerdict | None:
    """Judge the new build by the old one; None where the case ran no pairs. Incomplete pairs decide nothing."""
    if against is None or not runs:
        return None
    numbers = range(runs[0].number, runs[0].number + 2 * against.num_pairs)
    verdict = PairsVerdict(against.source, against.num_pairs, runs=tuple(runs))
    if fault := fault_of(runs, numbers):
        return replace(verdict, fault=f"the comparison with the old build {fault}")
    like, sides = sides_of(runs, numbers)
    return replace(verdict, findings=tuple(_findings(case, like, sides)))


def sides_of(runs: Sequence[CaseRun], numbers: range) -> tuple[RunRecord, Sides]:
    """Return the first run, and the figures of both sides of complete pairs: the old build, and the new."""
    records = {run.number: run.record for run in runs if run.record is not None}
    sides: Sides = ([], [])
    for place, number in enumerate(numbers):
        sides[pair_label(place) != OLD].append(derive(records[number]))
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


def _findings(case: Case, like: RunRecord, sides: Sides) -> Iterable[PairFinding]:
    for metric, before, now, limit in judged_metrics(case, like, sides, len(sides[1])):
        if metric.gate == "time":
            found = _time(metric, before, now, limit)
        else:
            base, together = (metric.read(combine(side)) for side in sides)
            judged: Finding = (
                compare_values(metric, together, base, limit)
                if base is None
                else judge_memory(metric, now, together, base, limit)
            )
            found = PairFinding(**vars(judged))
        is_of_suite = case.thresholds.get(metric.name) == found.threshold
        yield replace(found, allowed_by="the suite" if is_of_suite else "default")


def _time(metric: Metric, old: Sequence[float | None], new: Sequence[float | None], threshold: float) -> PairFinding:
    """Judge the mean relative difference of the pairs.

    Worse by more than 2 % (or the threshold, if that is less) and by more than noise: a regression. Inconclusive if the
    pairs vary so much that it may be worse than the threshold all the same.
    """
    allowed = min(SMALLEST_EFFECT, threshold)
    pairs = [(a, b) for a, b in zip(old, new, strict=True) if a is not None and b is not None]
    if len(pairs) < len(old):
        missing = f"some runs of the pairs have no {metric.title}"
        return PairFinding(metric.name, None, None, None, allowed, Verdict.INCONCLUSIVE, missing)
    logs = [math.log(b / a) for a, b in pairs]
    found = Welch(fmean(logs), stdev(logs) / math.sqrt(len(logs)), len(logs) - 1)
    change, half = math.expm1(found.difference), found.half_width(1 - 2 * PAIR_ALPHA)
    p_value = found.p_value / 2
    worse = metric.worsening(change)
    verdict, reason = Verdict.PASS, ""
    if worse > allowed and p_value <= PAIR_ALPHA:
        verdict = Verdict.REGRESSION
    elif worse + half > threshold:
        verdict = Verdict.INCONCLUSIVE
        shown = f"{format_percent(change)} +- {format_share(half)} (99 %) in {len(pairs)} pairs"
        reason = f"the pairs vary too much: {shown}, perhaps more than {format_share(threshold)}"
    means = [fmean(side) for side in zip(*pairs, strict=True)]
    return PairFinding(metric.name, means[1], means[0], change, allowed, verdict, reason, p_value=p_value, margin=half)


def judge_memory(
    metric: Metric, values: Sequence[float | None], together: float | None, golden: float, threshold: float
) -> CaseFinding:
    """Judge one figure over all runs: a regression or improvement needs every run beyond the threshold.

    ``together``: the figure of all runs, the highest peak. Some runs worse than allowed and others not is inconclusive;
    some better and none worse is a pass.
    """
    each = [compare_values(metric, value, golden, threshold) for value in values]
    whole = compare_values(metric, together, golden, threshold)
    verdicts = {finding.verdict for finding in each}
    verdict, reason = whole.verdict, whole.reason
    if len(verdicts) > 1 and Verdict.INCONCLUSIVE not in verdicts:
        worse = [finding for finding in each if finding.verdict is Verdict.REGRESSION]
        verdict = Verdict.INCONCLUSIVE if worse else Verdict.PASS
        changes = ", ".join(format_percent(finding.change) for finding in each if finding.change is not None)
        reason = f"{len(worse)} of {len(each)} runs are worse than allowed: {changes}" if worse else ""
    return CaseFinding(**vars(replace(whole, verdict=verdict, reason=reason)))


_UNDECIDED = (Verdict.REGRESSION, Verdict.INCONCLUSIVE)


def decided(finding: CaseFinding, pairs: PairsVerdict | None, *, is_alone: bool = False) -> CaseFinding:
    """Return the finding as the pairs decide it. What is good against the golden stays, unless the pairs are worse.

    ``is_alone``: there is no golden.
    """
    found = pairs.of(finding.metric) if pairs else None
    if pairs is None or found is None:
        return finding
    if finding.verdict not in _UNDECIDED and found.verdict is not Verdict.REGRESSION and not is_alone:
        return finding
    return replace(
        finding,
        threshold=found.threshold,
        allowed_by=found.allowed_by,
        verdict=found.verdict,
        reason=found.reason or pairs.text_of(found),
    )
