"""The rule for figures that repeat nearly to the byte: peaks of memory, and counted FLOPs, which do so exactly."""

from collections.abc import Sequence
from dataclasses import replace

from harness.analysis.gate import Verdict, compare_values
from harness.analysis.metrics import Metric
from harness.analysis.night.values import CaseFinding


def judge_memory(
    metric: Metric, values: Sequence[float | None], together: float | None, golden: float, threshold: float
) -> CaseFinding:
    """One figure over all runs: a regression, or an improvement, only where every run is beyond the threshold.

    ``together``: the figure of all runs, the highest peak. Some runs worse than allowed and others not is inconclusive;
    some better and none worse is a pass.
    """
    each = [compare_values(metric, value, golden, threshold) for value in values]
    whole = compare_values(metric, together, golden, threshold)
    verdicts = {one.verdict for one in each}
    verdict, reason = whole.verdict, whole.reason
    if len(verdicts) > 1 and Verdict.INCONCLUSIVE not in verdicts:
        worse = [one for one in each if one.verdict is Verdict.REGRESSION]
        verdict = Verdict.INCONCLUSIVE if worse else Verdict.PASS
        changes = ", ".join(f"{one.change:+.1%}" for one in each if one.change is not None)
        reason = f"{len(worse)} of {len(each)} runs are worse than allowed: {changes}" if worse else ""
    return CaseFinding(**vars(replace(whole, verdict=verdict, reason=reason)))
