"""The rule for a figure that differs from run to run, such as throughput.

A threshold is the change that alone calls for attention. Evidence lowers it to the smallest change that matters, 2 %:

* regression: worse by 2 % or more (or by the threshold, if that is less), and noise alone would show as much in fewer than
  1 of 100 nights over all cases; or every run, of three at least, is beyond the threshold and noise alone would show as
  much in fewer than 1 of 100 such cases;
* inconclusive: beyond the threshold, but the noise may explain it, or nothing is known of the noise;
* improvement: a regression the other way round, but what may be noise is a pass;
* pass: anything else.

What the noise is comes from these repeats, from the golden's runs and from earlier nights of the case.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.evidence import Reference, evidence_of
from harness.analysis.gate import Finding, Verdict, compare_values
from harness.analysis.metrics import Metric
from harness.analysis.night_values import CaseFinding, Evidence
from harness.analysis.noise import KnownNoise

SMALLEST_EFFECT = 0.02
"""A smaller change is no regression, however sure it is; a threshold below it stands in its place."""

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

    @property
    def smallest_effect(self) -> float:
        """The relative change below which nothing is a regression."""
        return min(SMALLEST_EFFECT, self.threshold)


def judge_time(
    metric: Metric, values: Sequence[float], golden: Reference, noise: KnownNoise | None, limits: TimeLimits
) -> CaseFinding:
    """One figure by the rule of this file. ``values``: one figure per run; the finding's ``current`` is their mean."""
    mean = sum(values) / len(values) if values else None
    plain = compare_values(metric, mean, golden.value, limits.threshold)
    if plain.change is None:
        return _finding(plain, plain.verdict, plain.reason, None)
    evidence = evidence_of(values, golden, noise)
    worse = is_worse(metric, plain.change)
    wanted = Verdict.REGRESSION if worse else Verdict.IMPROVEMENT
    beyond = [compare_values(metric, value, golden.value, limits.threshold).verdict is wanted for value in values]
    if _is_shown(plain.change, evidence, limits) or _is_every_run_beyond(beyond, evidence):
        return _finding(plain, wanted, "", evidence)
    if plain.verdict is Verdict.PASS:
        small = evidence.p_value is not None and evidence.p_value <= limits.alpha
        reason = f"real, but smaller than {limits.smallest_effect:.0%}" if small else ""
        return _finding(plain, Verdict.PASS, reason, evidence)
    reason = f"beyond {limits.threshold:.3g}, but {_doubt(evidence, limits)}"
    return _finding(plain, Verdict.INCONCLUSIVE if worse else Verdict.PASS, reason, evidence)


def is_suspicious(metric: Metric, finding: CaseFinding) -> bool:
    """Whether more runs should say if this is a regression: it is one, is beyond the threshold, or is half shown already."""
    change, evidence, threshold = finding.change, finding.evidence, finding.threshold
    if change is None or evidence is None or threshold is None or not is_worse(metric, change):
        return False
    if finding.verdict in (Verdict.REGRESSION, Verdict.INCONCLUSIVE):
        return True
    large = abs(change) >= min(SMALLEST_EFFECT, threshold) * _SUSPICION_SHARE
    return large and evidence.p_value is not None and evidence.p_value <= SUSPICION_ALPHA


def is_worse(metric: Metric, change: float) -> bool:
    """Whether a relative change of this figure is a worsening."""
    return change != 0 and (metric.better == "equal" or (change > 0) == (metric.better == "lower"))


def _is_shown(change: float, evidence: Evidence, limits: TimeLimits) -> bool:
    enough = evidence.p_value is not None and evidence.p_value <= limits.alpha
    return enough and abs(change) >= limits.smallest_effect


def _is_every_run_beyond(beyond: Sequence[bool], evidence: Evidence) -> bool:
    enough = evidence.p_value is not None and evidence.p_value <= EVERY_RUN_ALPHA
    return enough and len(beyond) >= MIN_RUNS_BEYOND and all(beyond)


def _doubt(evidence: Evidence, limits: TimeLimits) -> str:
    if evidence.p_value is None or evidence.noise is None:
        return f"{evidence.basis}; repeat it"
    return (
        f"one run varies by {evidence.noise * 100:.2g} % ({evidence.basis}): p = {evidence.p_value:.2g}, "
        f"evidence begins at {limits.alpha:.2g}"
    )


def _finding(plain: Finding, verdict: Verdict, reason: str, evidence: Evidence | None) -> CaseFinding:
    return CaseFinding(
        plain.metric, plain.current, plain.golden, plain.change, plain.threshold, verdict, reason, evidence
    )
