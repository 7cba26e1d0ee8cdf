"""Judges the pairs of a suspicious case: the old and the new build in turn, on the same machines in the same night."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean, stdev

from harness.judge.derive import combine, derive
from harness.judge.gate import Verdict, compare_values, default_thresholds
from harness.judge.plausible import doubts_of
from harness.judge.statistics import Welch
from harness.nightly.outcome import bad_end, how_it_ended
from harness.nightly.values import SPEED, AllowedBy, CaseFinding, CaseRun, PairFinding, PairsVerdict
from harness.records.metrics import METRICS, Metric, Metrics
from harness.records.night import OLD, Against, Case, pair_label
from harness.records.run import RunRecord
from harness.units import format_percent, format_share

PAIR_ALPHA = 0.005
"""The largest one-sided p-value at which the difference of the pairs counts as real."""

SMALLEST_EFFECT = 0.02
"""A smaller difference of two builds does not matter, however sure it is; a threshold below it takes its place."""


def judge_pairs(case: Case, runs: Sequence[CaseRun], against: Against | None) -> PairsVerdict | None:
    """Judge the new build by the old one; None where the case ran no pairs. Incomplete pairs decide nothing."""
    if against is None or not runs:
        return None
    numbers = range(runs[0].number, runs[0].number + 2 * against.num_pairs)
    verdict = PairsVerdict(against.source, against.num_pairs, runs=tuple(runs))
    if fault := _fault_of(runs, numbers):
        return replace(verdict, fault=f"the comparison with the old build {fault}")
    return replace(verdict, findings=tuple(_findings(case, runs, numbers)))


def _fault_of(runs: Sequence[CaseRun], numbers: range) -> str:
    """Say why the runs cannot be compared; empty if they can."""
    if ended := bad_end([run for run in runs if run.record or run.cancelled]):
        return f"{'ran out of memory' if ended[0] == 'oom' else 'failed'}: {how_it_ended(ended[1])}"
    records = {run.number: run.record for run in runs if run.record and run.record.status != "interrupted"}
    if not records.keys() >= {*numbers}:
        return f"is incomplete: {len(records)} of {len(numbers)} runs are done"
    for number, record in records.items():
        metrics = derive(record)
        if doubts := doubts_of(record, metrics):
            return f"is not usable: run {number} is suspect: {'; '.join(doubts)}"
        if problem := metrics.problems.get(SPEED):
            return f"is not usable: run {number}: {problem}"
    return ""


def limit_of(metric: Metric, case: Case, like: RunRecord, num_runs: int) -> tuple[float, AllowedBy]:
    """Return the threshold of a gated figure of ``num_runs`` runs that are like that one, and what sets it."""
    assert metric.gate is not None
    if metric.gate != "exact" and metric.name in case.thresholds:
        return case.thresholds[metric.name], "the suite"
    return default_thresholds(like.spec, num_runs).of(metric.gate), "default"


def _findings(case: Case, runs: Sequence[CaseRun], numbers: range) -> Iterable[PairFinding]:
    records = {run.number: run.record for run in runs if run.record is not None}
    like, sides = records[numbers.start], (list[Metrics](), list[Metrics]())
    for place, number in enumerate(numbers):
        sides[pair_label(place) != OLD].append(derive(records[number]))
    for metric in METRICS:
        before, now = ([metric.read(metrics) for metrics in side] for side in sides)
        if metric.gate is None or all(value is None for value in (*before, *now)):
            continue
        limit, allowed_by = limit_of(metric, case, like, len(now))
        base, together = (metric.read(combine(side)) for side in sides)
        if metric.gate == "time":
            yield _time(metric, before, now, limit, allowed_by)
        else:
            plain = compare_values(metric, together, base, limit)
            judged = plain if base is None else judge_memory(metric, now, together, base, limit)
            yield PairFinding(**vars(judged) | {"allowed_by": allowed_by})


def _time(
    metric: Metric, old: Sequence[float | None], new: Sequence[float | None], threshold: float, allowed_by: AllowedBy
) -> PairFinding:
    """Judge the mean difference of the pairs: a regression if it is worse by 2 % and by more than noise."""
    if (allowed := min(SMALLEST_EFFECT, threshold)) < threshold:
        allowed_by = "default"
    pairs = [(a, b) for a, b in zip(old, new, strict=True) if a is not None and b is not None]
    if len(pairs) < len(old):
        missing = f"some runs of the pairs have no {metric.title}"
        return PairFinding(metric.name, None, None, None, allowed, Verdict.INCONCLUSIVE, missing, allowed_by)
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
    decides = (allowed, verdict, reason, allowed_by)
    return PairFinding(metric.name, means[1], means[0], change, *decides, p_value=p_value, margin=half)


def judge_memory(
    metric: Metric, values: Sequence[float | None], together: float | None, golden: float, threshold: float
) -> CaseFinding:
    """Judge one figure: red if every run is beyond the threshold, inconclusive if only some are worse."""
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
    """Return the finding as the pairs decide it; what is good against the golden (not ``is_alone``) stays good."""
    found = pairs.of(finding.metric) if pairs else None
    if pairs is None or found is None:
        return finding
    if finding.verdict not in _UNDECIDED and found.verdict is not Verdict.REGRESSION and not is_alone:
        return finding
    reason = found.reason or pairs.text_of(found)
    return replace(finding, threshold=None, verdict=found.verdict, reason=reason)  # the pairs' threshold decides
