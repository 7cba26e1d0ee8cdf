"""The rule for a figure that differs from run to run, such as throughput.

The threshold is the change that alone calls for attention. Once five nights have shown how nights differ, evidence lowers
it to the smallest change that matters, 2 %. Throughput is

* a regression if it is worse by that much and noise alone would do so in fewer than 1 of 100 nights, over all cases; or if
  every run, of three at least, is worse than the threshold and noise alone would do so in fewer than 1 of 100 such cases;
* inconclusive if it is worse than the threshold, but noise may do so, or nothing is known of the noise;
* an improvement if it is the other way round a regression; what noise may do is none;
* a pass otherwise.

The noise is known from these repeats, from the golden's runs and from earlier nights of the case. Chances are as good as
that knowledge: nights that differ a little more than their runs explain, or a noisier night, make more of them red than 1 of
100. `scripts/bench-gate` says how many.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.analysis.gate import Finding, Verdict, compare_values
from harness.analysis.metrics import Metric
from harness.analysis.night.evidence import Reference, evidence_of
from harness.analysis.night.noise import KnownNoise
from harness.analysis.night.values import CaseFinding, Evidence
from harness.units import format_share

SMALLEST_EFFECT = 0.02
"""A smaller change is no regression, however sure it is; a threshold below it takes its place."""

EVERY_RUN_ALPHA = 0.01
MIN_RUNS_BEYOND = 3
"""Runs that must all be beyond the threshold where :data:`EVERY_RUN_ALPHA` is evidence enough."""

SUSPICION_ALPHA = 0.01
_SUSPICION_SHARE = 0.5


@dataclass(frozen=True)
class TimeLimits:
    """``threshold``: the relative change that alone calls for attention; ``alpha``: the largest p-value that is evidence."""

    threshold: float
    alpha: float

    def smallest_change(self, history: KnownNoise | None) -> float:
        """The relative change beyond which evidence makes a verdict."""
        known = history is not None and history.tells_nights
        return min(SMALLEST_EFFECT, self.threshold) if known else self.threshold


def judge_time(
    metric: Metric, values: Sequence[float], golden: Reference, history: KnownNoise | None, limits: TimeLimits
) -> CaseFinding:
    """One figure by the rule of this file. ``values``: one rate per run; the finding's ``current`` is the rate at their mean step time."""
    mean = statistics.harmonic_mean(values) if values else None
    plain = compare_values(metric, mean, golden.value, limits.threshold)
    if plain.change is None:
        return _finding(plain, plain.verdict, plain.reason, None)
    smallest = limits.smallest_change(history)
    evidence = replace(evidence_of(values, golden, history), smallest_change=smallest)
    worse = is_worse(metric, plain.change)
    wanted = Verdict.REGRESSION if worse else Verdict.IMPROVEMENT
    beyond = [compare_values(metric, value, golden.value, limits.threshold).verdict is wanted for value in values]
    shown = evidence.p_value is not None and evidence.p_value <= limits.alpha
    large = compare_values(metric, mean, golden.value, smallest).verdict is wanted
    if (shown and large) or _is_every_run_beyond(beyond, evidence):
        return _finding(plain, wanted, "", evidence)
    if plain.verdict is Verdict.PASS:
        reason = f"hardly noise, but smaller than {smallest * 100:.3g} %" if shown else ""
        return _finding(plain, Verdict.PASS, reason, evidence)
    reason = f"beyond {limits.threshold * 100:.3g} %, but {_doubt(evidence, limits)}"
    return _finding(plain, Verdict.INCONCLUSIVE if worse else Verdict.PASS, reason, evidence)


def is_suspicious(metric: Metric, finding: CaseFinding) -> bool:
    """Whether more runs should say if this is a regression: it is one, is beyond the threshold, or is half shown already."""
    change, evidence = finding.change, finding.evidence
    if change is None or evidence is None or evidence.smallest_change is None or not is_worse(metric, change):
        return False
    if finding.verdict in (Verdict.REGRESSION, Verdict.INCONCLUSIVE):
        return True
    likely = abs(change) >= evidence.smallest_change * _SUSPICION_SHARE
    return likely and evidence.p_value is not None and evidence.p_value <= SUSPICION_ALPHA


def is_worse(metric: Metric, change: float) -> bool:
    """Whether a relative change of this figure is a worsening."""
    return change != 0 and (metric.better == "equal" or (change > 0) == (metric.better == "lower"))


def _is_every_run_beyond(beyond: Sequence[bool], evidence: Evidence) -> bool:
    enough = evidence.p_value is not None and evidence.p_value <= EVERY_RUN_ALPHA
    return enough and len(beyond) >= MIN_RUNS_BEYOND and all(beyond)


def _doubt(evidence: Evidence, limits: TimeLimits) -> str:
    if evidence.p_value is None or evidence.noise is None:
        return f"{evidence.basis}; repeat it"
    return (
        f"one run varies by {format_share(evidence.noise)} ({evidence.basis}): p = {evidence.p_value:.2g}, "
        f"evidence begins at {limits.alpha:.2g}"
    )


def _finding(plain: Finding, verdict: Verdict, reason: str, evidence: Evidence | None) -> CaseFinding:
    return CaseFinding(**vars(replace(plain, verdict=verdict, reason=reason)), evidence=evidence)
