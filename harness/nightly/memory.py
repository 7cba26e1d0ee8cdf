"""The rule for peaks and counted work: every run must agree."""

from collections.abc import Sequence
from dataclasses import replace

from harness.judge.gate import Verdict, compare_values
from harness.nightly.values import CaseFinding
from harness.records.metrics import Metric
from harness.units import format_percent


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
