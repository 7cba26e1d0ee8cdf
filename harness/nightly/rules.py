"""The rules for time and memory."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.judge.gate import Finding, Verdict, compare_values
from harness.nightly.evidence import Reference, evidence_of
from harness.nightly.known_noise import KnownNoise
from harness.nightly.values import CaseFinding, Evidence
from harness.records.metrics import Metric
from harness.units import counted, format_percent, format_share


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


SMALLEST_EFFECT = 0.02
"""A smaller change is no regression, however sure it is; a threshold below it takes its place."""

EVERY_RUN_ALPHA = 0.01
MIN_RUNS_BEYOND = 3
"""Runs that must all be beyond the threshold where :data:`EVERY_RUN_ALPHA` is enough; without known nights only."""

ODD_GOLDEN_ALPHA = 0.01
# Two nights agree if they differ by at most this many deviations of a night. The least drift counts always, because no
# number of nights proves that there is none.
_AGREEMENT_DEVIATIONS, _LEAST_DRIFT = 3.5, 0.3
_LASTING_NIGHTS = 3
_SHARP_DEVIATIONS = 5.0
_GOLDEN_DEVIATIONS = 4.0  # a golden within so many of its own is no other level than the nights
_HABIT, _GROSS_THRESHOLDS, _ALIKE_SHARE = 2, 3.0, 0.35

SUSPICION_ALPHA = 0.02
SUSPICION_SHARE = 0.5


@dataclass(frozen=True)
class TimeLimits:
    """``threshold``: the relative change that calls for attention; ``alpha``: the largest p-value that is evidence."""

    threshold: float
    alpha: float

    def smallest_change(self, history: KnownNoise | None) -> float:
        """Return the relative change beyond which evidence makes a verdict."""
        known = history is not None and history.knows_nights
        return min(SMALLEST_EFFECT, self.threshold) if known else self.threshold


@dataclass(frozen=True)
class NightBefore:
    """The last night before this one, whatever its verdict: one rate per run, and the noise in the nights before it."""

    values: Sequence[float]
    history: KnownNoise | None


def judge_time(
    metric: Metric,
    values: Sequence[float],
    golden: Reference,
    history: KnownNoise | None,
    limits: TimeLimits,
    before: NightBefore | None = None,
) -> CaseFinding:
    """Judge one figure. ``values``: one rate per run; the finding's ``current`` is the rate at their mean step time.

    ``history``: of all nights that count, the last one among them unless it was a regression.
    """
    mean = statistics.harmonic_mean(values) if values else None
    plain = compare_values(metric, mean, golden.value, limits.threshold)
    if mean is None or plain.change is None:
        return _finding(plain, plain.verdict, plain.reason, None)
    level = _level_instead(golden, history)
    reference = golden if level is None else replace(golden, value=level)
    evidence = replace(evidence_of(values, reference, history), smallest_change=limits.smallest_change(history))
    wanted = Verdict.REGRESSION if is_worse(metric, mean / reference.value - 1) else Verdict.IMPROVEMENT
    is_large = wanted in _verdicts(metric, mean, reference, history, limits)
    odd = _odd_golden(golden, level)
    if wanted is Verdict.REGRESSION and is_large:
        lasting = _repeated(metric, values, before, reference, history, evidence, limits)
        evidence = replace(evidence, is_repeated=bool(lasting))
        if why := lasting or _odd_nights_like(mean / reference.value - 1, history, evidence, limits):
            verdict = wanted if lasting else Verdict.INCONCLUSIVE
            return _finding(plain, verdict, "; ".join(filter(None, (why, odd))), evidence)
    beyond = [compare_values(metric, value, reference.value, limits.threshold).verdict is wanted for value in values]
    if (_is_shown(evidence, limits) and is_large) or _is_every_run_beyond(beyond, evidence, limits):
        return _finding(plain, wanted, odd, evidence)
    return _unsure(metric, plain, evidence, limits, odd)


def _verdicts(
    metric: Metric, mean: float, golden: Reference, history: KnownNoise | None, limits: TimeLimits
) -> set[Verdict]:
    """Compare with all values that the change must differ from, by the smallest change that can be a verdict."""
    smallest = limits.smallest_change(history)
    return {compare_values(metric, mean, value, smallest).verdict for value in _measures(golden, history, smallest)}


def _is_shown(evidence: Evidence, limits: TimeLimits) -> bool:
    return evidence.p_value is not None and evidence.p_value <= limits.alpha


def _unsure(metric: Metric, plain: Finding, evidence: Evidence, limits: TimeLimits, odd: str) -> CaseFinding:
    """Return a pass, or inconclusive for what is worse than the threshold."""
    if plain.verdict is Verdict.PASS:
        small = f"unlikely to be noise, but smaller than {(evidence.smallest_change or 0.0) * 100:.3g} %"
        return _finding(plain, Verdict.PASS, small if _is_shown(evidence, limits) else "", evidence)
    reason = f"beyond {limits.threshold * 100:.3g} %, but {odd or _doubt(evidence, limits)}"
    is_bad = is_worse(metric, plain.change or 0.0)
    return _finding(plain, Verdict.INCONCLUSIVE if is_bad else Verdict.PASS, reason, evidence)


def _measures(golden: Reference, history: KnownNoise | None, smallest: float) -> tuple[float, ...]:
    """Return the values from which a change must differ enough: the level of the nights and, if different, the golden.

    Few runs know a golden badly; the level that many nights know then takes its place.
    """
    if history is None or history.level is None or not history.knows_nights:
        return (golden.value,)
    error = _GOLDEN_DEVIATIONS * history.within_sd / math.sqrt(golden.num_runs)
    is_same = abs(history.level / golden.value - 1) <= max(smallest / 2, error)
    return (history.level,) if is_same else (history.level, golden.value)


def _level_instead(golden: Reference, history: KnownNoise | None) -> float | None:
    """Return the level of the nights around the golden if the golden's own night was an odd one; else None."""
    if history is None or history.golden_level is None:
        return None
    levels = (history.golden_level, *history.levels)
    if min(abs(golden.value / level - 1) for level in levels) < SMALLEST_EFFECT:
        return None
    found = [evidence_of([golden.value], Reference(level, None, 1), history).p_value for level in levels]
    return history.golden_level if all(p is not None and p <= ODD_GOLDEN_ALPHA for p in found) else None


def _odd_golden(golden: Reference, level: float | None) -> str:
    if level is None:
        return ""
    off = format_percent(golden.value / level - 1)
    return f"the golden is {off} off the nights around it, an odd night itself: promote it again"


def _repeated(
    metric: Metric,
    values: Sequence[float],
    before: NightBefore | None,
    golden: Reference,
    history: KnownNoise | None,
    evidence: Evidence,
    limits: TimeLimits,
) -> str:
    """Return which earlier nights show the same change; empty if none do."""
    mean = statistics.harmonic_mean(values)
    return _again(metric, values, before, golden, limits) or _lasting(mean, golden, history, evidence, limits)


def _again(
    metric: Metric, values: Sequence[float], before: NightBefore | None, golden: Reference, limits: TimeLimits
) -> str:
    """Return that the night before agrees with tonight, if noise hardly explains both; else an empty text.

    The weaker of two independent nights counts twice, of nights that drift less. Two nights that differ from the three
    before by far more than such nights did need not be beyond the threshold; no other two are believed.
    """
    if before is None or not before.values:
        return ""
    history = before.history
    means = [statistics.harmonic_mean(night) for night in (values, before.values)]
    now, then = (mean / golden.value - 1 for mean in means)
    is_sharp = _is_sharp(metric, means, history, limits)
    least = limits.smallest_change(history) if is_sharp else limits.threshold
    if is_sharp is False or not is_worse(metric, then) or min(abs(now), abs(then)) <= least:
        return ""
    found = [evidence_of(night, golden, history) for night in (values, before.values)]
    if abs(now - then) > max(limits.threshold / 4, _AGREEMENT_DEVIATIONS * _noise_of_a_night(found, history)):
        return ""
    weaker = max(1.0 if each.p_value is None else each.p_value for each in found)
    drift = max(_LEAST_DRIFT, history.drift if history else 0.0)
    return f"the night before had {format_percent(then)}" if weaker ** (2 / (1 + drift)) <= limits.alpha else ""


def _noise_of_a_night(found: Sequence[Evidence], history: KnownNoise | None) -> float:
    noise = max((each.noise or 0.0) / math.sqrt(each.num_runs) for each in found)
    return max(noise, history.night_sd if history else 0.0)


def _is_sharp(metric: Metric, means: Sequence[float], history: KnownNoise | None, limits: TimeLimits) -> bool | None:
    """Return whether two nights differ from the three before by more than such nights did; None if few are known.

    Nights that drift differ much from their level and little from the nights before: their drift need not be estimated.
    """
    if history is None or history.pair_sd is None or history.recent is None:
        return None
    change = statistics.mean(means) / history.recent - 1
    least = max(limits.smallest_change(history), _SHARP_DEVIATIONS * history.pair_sd)
    return is_worse(metric, change) and abs(change) > least


def _lasting(mean: float, golden: Reference, history: KnownNoise | None, evidence: Evidence, limits: TimeLimits) -> str:
    """Return that the level since a step after the golden is beyond the threshold, and tonight like it."""
    if history is None or history.level is None or len(history.levels) < 2 or history.num_nights < _LASTING_NIGHTS:
        return ""
    known = [golden.value, *([history.golden_level] if history.golden_level else [])]
    changes = [history.level / value - 1 for value in known]
    if not all(abs(change) > limits.threshold and change * (mean - golden.value) > 0 for change in changes):
        return ""
    if history.drift and min(map(abs, changes)) <= _wandering(history):
        return ""
    apart = _AGREEMENT_DEVIATIONS * (evidence.noise or 0.0) / math.sqrt(evidence.num_runs)
    if abs(mean - history.level) / golden.value > max(limits.threshold / 2, apart):
        return ""
    return f"like the {history.num_nights} nights before, which differ by {format_percent(changes[0])} together"


def _wandering(history: KnownNoise) -> float:
    """Return how far nights that drift take a level on their own: drift shows as steps in the history."""
    return _AGREEMENT_DEVIATIONS * history.night_sd * math.sqrt(1 + 1 / history.effective_nights)


def _odd_nights_like(change: float, history: KnownNoise | None, evidence: Evidence, limits: TimeLimits) -> str:
    """Return why the change is not believed yet: earlier nights of the case were as odd and passed.

    One odd night is no habit, unless it and tonight are both gross.
    """
    if history is None or not _is_shown(evidence, limits):
        return ""
    like = [night.change for night in history.odd if night.change * change > 0]
    gross = abs(change) >= _GROSS_THRESHOLDS * limits.threshold
    alike = [earlier for earlier in like if gross and abs(change) >= _ALIKE_SHARE * abs(earlier)]
    if len(like) < _HABIT and not alike:
        return ""
    shown = ", ".join(format_percent(earlier) for earlier in sorted(like, key=abs, reverse=True)[:3])
    return (
        f"{format_percent(change)}, but {counted(len(like), 'earlier night')} of this case came out as odd ({shown}) "
        "and passed: a regression if the next night agrees"
    )


def is_suspicious(metric: Metric, finding: CaseFinding) -> bool:
    """Whether more runs should confirm a regression: it is one, exceeds the threshold, or is half established."""
    change, evidence = finding.change, finding.evidence
    if change is None or evidence is None or evidence.smallest_change is None or not is_worse(metric, change):
        return False
    if finding.verdict in (Verdict.REGRESSION, Verdict.INCONCLUSIVE):
        return True
    likely = abs(change) >= evidence.smallest_change * SUSPICION_SHARE
    return likely and evidence.p_value is not None and evidence.p_value <= SUSPICION_ALPHA


def is_worse(metric: Metric, change: float) -> bool:
    """Return whether a relative change of this figure is a worsening."""
    return change != 0 and (metric.better == "equal" or (change > 0) == (metric.better == "lower"))


def _is_every_run_beyond(beyond: Sequence[bool], evidence: Evidence, limits: TimeLimits) -> bool:
    """Return whether all of at least three runs are beyond the threshold, by more than nights may differ."""
    if evidence.p_value is None or evidence.p_if_nights_differ is None:
        return False
    enough = evidence.p_value <= EVERY_RUN_ALPHA and evidence.p_if_nights_differ <= limits.alpha
    return enough and len(beyond) >= MIN_RUNS_BEYOND and all(beyond)


def _doubt(evidence: Evidence, limits: TimeLimits) -> str:
    if evidence.p_value is None or evidence.noise is None:
        return f"{evidence.basis}; repeat it"
    more = [f"a golden of {MIN_RUNS_BEYOND} runs"] * (evidence.num_golden_runs < MIN_RUNS_BEYOND)
    return (
        f"so few runs and nights do not tell it from noise (one run varies by about {format_share(evidence.noise)}: "
        f"{evidence.basis}): p = {evidence.p_value:.2g} is above the limit of {limits.alpha:.2g}; "
        f"{' or '.join([*more, 'further nights'])} can decide it"
    )


def _finding(plain: Finding, verdict: Verdict, reason: str, evidence: Evidence | None) -> CaseFinding:
    return CaseFinding(**vars(replace(plain, verdict=verdict, reason=reason)), evidence=evidence)
