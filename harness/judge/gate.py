"""Compares a run with golden values by thresholds, and decides the outcome."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Literal, TypeVar, get_args

from pydantic import PlainSerializer, WithJsonSchema

from harness.errors import ExitCode
from harness.experiment.experiment import ExperimentSpec
from harness.judge.likeness import Likeness
from harness.records.golden import GoldenRecord
from harness.records.metrics import METRICS, GateKind, Metric, Metrics
from harness.records.run import BUILT_OTHERWISE, Status

OptionalText = Annotated[str, PlainSerializer(lambda text: text or None, return_type=str | None)]
"""A text that becomes null in JSON when it is empty."""

Code = Annotated[ExitCode, WithJsonSchema({"type": "integer"})]
"""An exit code, in JSON its number."""

# A change equal to the threshold passes, despite binary rounding (709.93 * 0.95).
_ROUNDING = 1e-9
# Medians of three CPU runs differ by more than 10 % in fewer than 1 of 200 pairs; single runs need the row's 15 %.
_REPEATS_FOR_CPU = 3
_CPU_REPEATED_THRESHOLD = 0.10


class Verdict(StrEnum):
    """The verdict on a metric, or on all metrics."""

    PASS = "pass"  # noqa: S105 (a verdict)
    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    INCONCLUSIVE = "inconclusive"
    NOT_GATED = "not_gated"

    @property
    def text(self) -> str:
        return "not judged" if self is Verdict.NOT_GATED else self.value


@dataclass(frozen=True)
class Thresholds:
    """The allowed relative worsening of time and memory metrics. Counted FLOPs must not change."""

    time: float
    memory: float

    def of(self, kind: GateKind) -> float:
        """Return the threshold of a kind of gate."""
        return {"time": self.time, "memory": self.memory, "exact": 0.0}[kind]


@dataclass(frozen=True)
class Figure:
    """A figure of one side: of a run, of a log or of golden values. ``problem``: why it allows no verdict."""

    value: float | None
    problem: str = ""


@dataclass(frozen=True)
class Finding:
    """A row of a comparison. ``change``: (current - golden) / golden; None unless both are real, of good runs."""

    metric: str
    current: float | None
    golden: float | None
    change: float | None
    threshold: float | None
    verdict: Verdict
    reason: OptionalText = ""


@dataclass(frozen=True)
class Comparison:
    """All findings and the outcome. ``provisional``: which side ends before its job; then only red counts."""

    findings: tuple[Finding, ...]
    outcome: Verdict
    golden: GoldenRecord | None = None
    golden_path: str | None = None
    likeness: Likeness = field(default_factory=Likeness)
    note: str = ""
    provisional: tuple[str, ...] = ()


def default_thresholds(
    spec: ExperimentSpec, num_runs: int = 1, *, timing: float | None = None, memory: float | None = None
) -> Thresholds:
    """Return the thresholds of the command line, or of the GPU. ``num_runs``: of the side with fewer repeats."""
    gpu = spec.gpu_type
    time_row, memory_row = gpu.timing_threshold, gpu.memory_threshold
    if gpu.is_cpu and num_runs >= _REPEATS_FOR_CPU:
        time_row = _CPU_REPEATED_THRESHOLD
    return Thresholds(time_row if timing is None else timing, memory_row if memory is None else memory)


def judge(
    metrics: Metrics,
    golden: GoldenRecord,
    thresholds: Thresholds,
    *,
    likeness: Likeness,
    doubts: tuple[str, ...] = (),
) -> Comparison:
    """Compare every metric of the table with ``golden``. ``doubts`` (failed or suspect run) make it inconclusive."""
    findings = []
    for metric in METRICS:
        ours = Figure(metric.read(metrics), metrics.problems.get(metric.name, ""))
        stored = golden.metrics.get(metric.name)
        if stored is not None or (metric.gate and ours.value is not None):
            theirs = None if stored is None else Figure(stored.value)
            findings.append(judge_figure(metric, ours, theirs, thresholds, _withheld(metric.kind, likeness, doubts)))
    return Comparison(tuple(findings), overall(findings), golden, likeness=likeness)


def no_golden(metrics: Metrics, note: str, *, required: bool = False) -> Comparison:
    """Return the figures without a golden; inconclusive if one is ``required``. ``note``: which path was searched."""
    findings = tuple(
        Finding(metric.name, value, None, None, None, Verdict.NOT_GATED, "no golden")
        for metric in METRICS
        if metric.gate and (value := metric.read(metrics)) is not None
    )
    return Comparison(findings, Verdict.INCONCLUSIVE if required else Verdict.PASS, note=note)


AnyFinding = TypeVar("AnyFinding", bound=Finding)
_WORST_FIRST = (Verdict.REGRESSION, Verdict.INCONCLUSIVE, Verdict.IMPROVEMENT, Verdict.PASS, Verdict.NOT_GATED)


def worst(findings: Iterable[AnyFinding]) -> AnyFinding | None:
    """Return the finding with the worst verdict, the first of equal ones; ungated ones come last."""
    return min(findings, key=lambda finding: _WORST_FIRST.index(finding.verdict), default=None)


def overall(findings: Sequence[Finding]) -> Verdict:
    """Return the worst verdict: regression, inconclusive, improvement, pass. Inconclusive if nothing was gated."""
    found = worst(findings)
    return found.verdict if found and found.verdict is not Verdict.NOT_GATED else Verdict.INCONCLUSIVE


def compare_values(metric: Metric, current: float | None, golden: float | None, threshold: float) -> Finding:
    """Compare a metric by its numbers alone. Inconclusive unless both are finite and positive."""
    for side, value in (("the run's value", current), ("the reference's value", golden)):
        if value is None or not math.isfinite(value) or value <= 0:
            verdict, reason = Verdict.INCONCLUSIVE, f"{side} is {'missing' if value is None else value}"
            return Finding(metric.name, current, golden, None, threshold, verdict, reason)
    assert current is not None and golden is not None
    change = (current - golden) / golden
    beyond = abs(change) > threshold and not math.isclose(abs(change), threshold, rel_tol=_ROUNDING)
    verdict = Verdict.PASS
    if beyond:
        verdict = Verdict.REGRESSION if metric.worsening(change) > 0 else Verdict.IMPROVEMENT
    return Finding(metric.name, current, golden, change, threshold, verdict)


def judge_figure(
    metric: Metric,
    current: Figure,
    golden: Figure | None,
    thresholds: Thresholds,
    withheld: tuple[Verdict, str] | None = None,
) -> Finding:
    """Judge a figure against that of a reference. ``withheld``: a verdict that stands in any case, with its reason."""
    if golden is None:
        return Finding(
            metric.name, current.value, None, None, None, Verdict.NOT_GATED, "the reference has no such value"
        )
    finding = compare_values(metric, current.value, golden.value, thresholds.of(metric.gate) if metric.gate else 0.0)
    if metric.gate is None:
        return replace(finding, threshold=None, verdict=Verdict.NOT_GATED, reason="shown only; another figure is gated")
    problem = golden.problem or current.problem
    verdict, reason = withheld or (Verdict.INCONCLUSIVE if problem else finding.verdict, problem or finding.reason)
    return replace(finding, verdict=verdict, reason=reason)


def _withheld(kind: GateKind, likeness: Likeness, doubts: tuple[str, ...]) -> tuple[Verdict, str] | None:
    """Return what the doubts, or the differences, make of a figure of this kind; None if they allow a verdict."""
    built = [why.removeprefix("suspect: ") for why in doubts if BUILT_OTHERWISE in why]
    if doubts and (kind == "time" or len(built) < len(doubts)):
        return Verdict.INCONCLUSIVE, "; ".join(doubts)
    against = likeness.against(kind)
    if kind == "exact" and not against and (asked := likeness.other_work()):
        return Verdict.NOT_GATED, "; ".join(each.text for each in asked)
    if not against:  # memory and counted work follow from what is recomputed, without noise
        return (Verdict.REGRESSION, "; ".join(built)) if built else None
    blocked = any(difference.blocks for difference in against)
    return (Verdict.INCONCLUSIVE if blocked else Verdict.NOT_GATED), "; ".join(d.text for d in against)


Outcome = Literal["failed", "oom", "regression", "inconclusive", "improvement", "pass"]
"""Of a run, a comparison, or a case of a night; the worst first."""
WORST_FIRST: tuple[Outcome, ...] = get_args(Outcome)

_EXIT_CODES: Mapping[Outcome, ExitCode] = {
    "failed": ExitCode.RUN_FAILED,
    "oom": ExitCode.OUT_OF_MEMORY,
    "regression": ExitCode.REGRESSION,
    "inconclusive": ExitCode.INCONCLUSIVE,
    "improvement": ExitCode.OK,
    "pass": ExitCode.OK,
}
_SIGTERM = 15


def exit_code_of(outcome: Outcome, *, fail_on_improvement: bool = False) -> ExitCode:
    """Return the exit code that an outcome stands for, where it was not expected."""
    is_failure = outcome == "improvement" and fail_on_improvement
    return ExitCode.IMPROVEMENT if is_failure else _EXIT_CODES[outcome]


def outcome_of(verdict: Verdict) -> Outcome:
    """Return the outcome of figures with that verdict."""
    return next((outcome for outcome in WORST_FIRST if outcome == verdict), "pass")


def comparison_outcome(comparison: Comparison, *, fail_on_improvement: bool = False) -> tuple[Outcome, ExitCode]:
    """Return outcome and exit code of a comparison; a provisional one passes nothing."""
    is_open = comparison.provisional and comparison.outcome is not Verdict.REGRESSION
    outcome = outcome_of(Verdict.INCONCLUSIVE if is_open else comparison.outcome)
    return outcome, exit_code_of(outcome, fail_on_improvement=fail_on_improvement)


def run_outcome(
    status: Status, comparison: Comparison, *, fail_on_improvement: bool = False, signal: int | None = None
) -> tuple[Outcome, ExitCode]:
    """Return outcome and exit code of a run. ``signal``: the signal that interrupted it."""
    if status == "ok":
        return comparison_outcome(comparison, fail_on_improvement=fail_on_improvement)
    return ("oom" if status == "oom" else "failed"), status_exit_code(status, signal)


def status_exit_code(status: Status, signal: int | None = None) -> ExitCode:
    """Return the exit code for a run's status, before any comparison. ``signal``: the signal that interrupted it."""
    if status == "interrupted":
        return ExitCode.TERMINATED if signal == _SIGTERM else ExitCode.INTERRUPTED
    return ExitCode.OK if status == "ok" else _EXIT_CODES[status]
