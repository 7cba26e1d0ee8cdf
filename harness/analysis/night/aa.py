"""The A/A of a night: runs of one setting under two labels, which a harness that can be trusted finds equal.

Times are held to each other by Student's t of two samples with one variance, as the labels are of one setting: two-sided,
1 %, so that in 1 of 100 nights in which the machine is as it should be this looks otherwise. As for a regression, a
smaller change than matters is none. Runs that differ so much that a change as large as the case's threshold would not show
tell nothing. Only tonight's runs say how runs differ; how nights differ does not come into it.
Peak memory is held to the rule of a golden, counted work must be equal.
"""

from collections.abc import Iterable, Sequence

from harness.analysis.derive import combine, derive
from harness.analysis.gate import Verdict, default_thresholds
from harness.analysis.metrics import METRICS, GateKind, Metric, Metrics
from harness.analysis.night.aa_evidence import two_sample_t
from harness.analysis.night.memory_rule import judge_memory
from harness.analysis.night.time_rule import SMALLEST_EFFECT
from harness.analysis.night.values import AaFinding, AaVerdict, CaseRun
from harness.records.night import Case, aa_label
from harness.records.run import RunRecord
from harness.units import format_percent, format_share

AA_ALPHA = 0.01
"""The largest two-sided p-value at which the labels count as different."""

_Sides = tuple[list[Metrics], list[Metrics]]  # of A and of A'


def judge_aa(case: Case, runs: Sequence[CaseRun], numbers: range) -> AaVerdict:
    """Whether the A/A of ``case`` holds, whose ``runs`` have these ``numbers``; not where it is not whole or says nothing."""
    num_pairs = len(numbers) // 2
    fault = _fault(runs, numbers)
    if fault:
        return AaVerdict(case.name, num_pairs, tuple(runs), doubts={"time": f"tonight's own A/A {fault}"})
    records = {run.number: run.record for run in runs if run.record is not None}
    by_label: dict[str, list[Metrics]] = {"A": [], "A'": []}
    for place, number in enumerate(numbers):
        by_label[aa_label(place)].append(derive(records[number]))
    findings = tuple(_findings(case, records[numbers.start], (by_label["A"], by_label["A'"])))
    return AaVerdict(case.name, num_pairs, tuple(runs), findings, _doubts(findings))


def _fault(runs: Sequence[CaseRun], numbers: range) -> str:
    """Why there is nothing to compare; empty where there is."""
    done = {run.number for run in runs if run.record is not None and run.record.status != "interrupted"}
    for run in runs:
        if fault := _ended_badly(run):
            return f"failed: run {run.number}: {fault}"
    if not done.issuperset(numbers):
        return f"is not whole: {len(done)} of {len(numbers)} runs are there"
    return next((text for run in runs if run.record and (text := _tells_nothing(run.record, run.number))), "")


def _ended_badly(run: CaseRun) -> str:
    if run.cancelled:
        return run.cancelled
    if run.record is None or run.record.status in ("ok", "interrupted"):
        return ""
    told = (run.record.failure or run.record.status).strip().splitlines()[0]
    return f"out of memory: {told}" if run.record.status == "oom" else told


def _tells_nothing(record: RunRecord, number: int) -> str:
    if record.suspect:
        return f"says nothing: run {number} is suspect: {'; '.join(record.suspect)}"
    problem = derive(record).problems.get("tflops_per_gpu")
    return f"says nothing: run {number}: {problem}" if problem else ""


def _findings(planned: Case, like: RunRecord, sides: _Sides) -> Iterable[AaFinding]:
    for metric in METRICS:
        first, second = ([metric.read(one) for one in side] for side in sides)
        if metric.gate is None or all(value is None for value in (*first, *second)):
            continue
        limit = default_thresholds(like.spec, len(first)).of(metric.gate)
        if metric.gate != "exact":
            limit = planned.thresholds.get(metric.name, limit)
        if metric.gate == "time":
            own = planned.thresholds.get(metric.name, default_thresholds(like.spec, planned.repeats).of("time"))
            yield _time(metric, first, second, own)
        else:
            yield _repeating(metric, second, sides, limit)


def _time(metric: Metric, first: Sequence[float | None], second: Sequence[float | None], threshold: float) -> AaFinding:
    limit = min(SMALLEST_EFFECT, threshold)
    a, b = ([value for value in side if value is not None] for side in (first, second))
    if len(a) < len(first) or len(b) < len(second):
        return AaFinding(metric.name, None, None, None, None, None, limit, holds=False)
    found = two_sample_t(a, b)
    visible, differs = found.visible(AA_ALPHA), abs(found.change) > limit and found.p_value <= AA_ALPHA
    is_blind = not differs and visible > threshold
    return AaFinding(
        metric.name, found.first, found.second, found.change, found.p_value, found.noise, limit,
        not differs and not is_blind, visible=visible, threshold=threshold, is_blind=is_blind,
    )  # fmt: skip


def _repeating(metric: Metric, second: Sequence[float | None], sides: _Sides, limit: float) -> AaFinding:
    """Peaks and counted work: A' against the worst of A, as a case against its golden."""
    a, b = (metric.read(combine(side)) for side in sides)
    if a is None:
        return AaFinding(metric.name, a, b, None, None, None, limit, holds=False)
    judged = judge_memory(metric, second, b, a, limit)
    return AaFinding(metric.name, a, b, judged.change, None, None, limit, judged.verdict is Verdict.PASS)


def _doubts(findings: Iterable[AaFinding]) -> dict[GateKind, str]:
    """Each kind of metric is in doubt by its own; the first of a kind is told."""
    rows = {metric.name: metric for metric in METRICS}
    found: dict[GateKind, str] = {}
    for finding in findings:
        metric = rows[finding.metric]
        if metric.gate is not None and not finding.holds:
            found.setdefault(metric.gate, f"tonight's own A/A {_told(metric, finding)}")
    return found


def _told(metric: Metric, finding: AaFinding) -> str:
    """``differs: TFLOP/s/GPU by +4.2 % (p 0.0021)``."""
    if finding.change is None:
        return f"says nothing: {metric.title} is not known of all runs"
    if finding.is_blind and finding.visible is not None and finding.threshold is not None:
        shows = f"only a change of {metric.title} of {format_share(finding.visible)} would show"
        return f"could not tell: {shows}, the threshold is {format_share(finding.threshold)}"
    p_value = "" if finding.p_value is None else f" (p {finding.p_value:.2g})"
    return f"differs: {metric.title} by {format_percent(finding.change)}{p_value}"
