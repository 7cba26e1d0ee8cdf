"""Judges the pairs of a suspicious case: the old and the new build in turn, on the same machines in the same night."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean, stdev

from harness.errors import BadRequestError
from harness.judge.derive import combine
from harness.judge.gate import Finding, Verdict, compare_values
from harness.judge.statistics import Welch
from harness.nightly.aa import SMALLEST_EFFECT, Sides, count_problems, fault_of, judged_metrics, sides_of
from harness.nightly.memory import judge_memory
from harness.nightly.values import CaseFinding, CaseRun, PairFinding, PairsVerdict
from harness.records.metrics import Metric
from harness.records.night import Against, Case
from harness.records.run import RunRecord
from harness.units import format_percent, format_share

PAIR_ALPHA = 0.005
"""The largest one-sided p-value at which the difference of the pairs counts as real."""


def pairs_problems(num_pairs: int) -> list[BadRequestError]:
    """Return the problem of the number of pairs, if it has one."""
    return count_problems("--pairs", num_pairs, "5 pairs find a difference of three times the noise of one run")


def judge_pairs(case: Case, runs: Sequence[CaseRun], against: Against | None) -> PairsVerdict | None:
    """Judge the new build by the old one; None where the case ran no pairs. Incomplete pairs decide nothing."""
    if against is None or not runs:
        return None
    numbers = range(runs[0].number, runs[0].number + 2 * against.num_pairs)
    verdict = PairsVerdict(against.source, against.num_pairs, tuple(runs))
    if fault := fault_of(runs, numbers):
        return replace(verdict, fault=f"the comparison with the old build {fault}")
    like, sides = sides_of(runs, numbers)
    return replace(verdict, findings=tuple(_findings(case, like, sides)))


def _findings(case: Case, like: RunRecord, sides: Sides) -> Iterable[PairFinding]:
    for metric, before, now, limit in judged_metrics(case, like, sides, len(sides[1])):
        if metric.gate == "time":
            yield _time(metric, before, now, limit)
            continue
        base, together = (metric.read(combine(side)) for side in sides)
        judged: Finding = (
            compare_values(metric, together, base, limit)
            if base is None
            else judge_memory(metric, now, together, base, limit)
        )
        yield PairFinding(**vars(judged))


def _time(metric: Metric, old: Sequence[float | None], new: Sequence[float | None], threshold: float) -> PairFinding:
    """Judge the mean relative difference of the pairs.

    Worse by more than 2 % (or the threshold, if that is less) and by more than noise: a regression. Inconclusive if the
    pairs vary so much that it may be worse than the threshold all the same.
    """
    pairs = [(a, b) for a, b in zip(old, new, strict=True) if a is not None and b is not None]
    if len(pairs) < len(old):
        missing = f"some runs of the pairs have no {metric.title}"
        return PairFinding(metric.name, None, None, None, threshold, Verdict.INCONCLUSIVE, missing)
    logs = [math.log(b / a) for a, b in pairs]
    found = Welch(fmean(logs), stdev(logs) / math.sqrt(len(logs)), len(logs) - 1)
    change, half = math.expm1(found.difference), found.half_width(1 - 2 * PAIR_ALPHA)
    p_value = found.p_value / 2
    worse = metric.worsening(change)
    verdict, reason = Verdict.PASS, ""
    if worse > min(SMALLEST_EFFECT, threshold) and p_value <= PAIR_ALPHA:
        verdict = Verdict.REGRESSION
    elif worse + half > threshold:
        verdict = Verdict.INCONCLUSIVE
        reason = f"the pairs vary too much: {format_percent(change)} +- {format_share(half)} in {len(pairs)} pairs"
    means = [fmean(side) for side in zip(*pairs, strict=True)]
    return PairFinding(
        metric.name, means[1], means[0], change, threshold, verdict, reason, p_value=p_value, margin=half
    )


_UNDECIDED = (Verdict.REGRESSION, Verdict.INCONCLUSIVE)


def decided(finding: CaseFinding, pairs: PairsVerdict | None) -> CaseFinding:
    """Return the finding as the pairs decide it. What is good against the golden stays, unless the pairs are worse."""
    found = pairs.of(finding.metric) if pairs else None
    if pairs is None or found is None:
        return finding
    if finding.verdict not in _UNDECIDED and found.verdict is not Verdict.REGRESSION:
        return finding
    return replace(finding, verdict=found.verdict, reason=found.reason or pairs.text_of(found))
