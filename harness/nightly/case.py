"""Judges one case of a night by its metrics and by the nights in history."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date

from harness.errors import ExitCode
from harness.experiment.flops import FORMULA_VERSION
from harness.history import series
from harness.history.record import HistoryRecord, started
from harness.judge.compare import compare_runs
from harness.judge.coverage import measured_device
from harness.judge.derive import derive
from harness.judge.gate import Comparison, Finding, Outcome, Verdict, exit_code_of
from harness.judge.likeness import SOFTWARE, Likeness
from harness.nightly.outcome import bad_end, effective_runs, expectation, figures_outcome, how_it_ended
from harness.nightly.pairs import decided, judge_memory, judge_pairs, limit_of
from harness.nightly.rule import Night, Reference, accident_in, judge_time
from harness.nightly.values import SPEED, Accident, CaseFinding, CaseMaterial, CaseRun, CaseVerdict
from harness.records.gating import GateOptions
from harness.records.golden import Difference, GoldenRecord, MeasuredOn, differences
from harness.records.metrics import BY_NAME, Metrics
from harness.records.night import Against, NightPlan
from harness.records.run import Provenance, RunRecord
from harness.units import utc_time

MACHINE = (*SOFTWARE, "device_name", "driver_version")
"""What a golden was measured with: differences of these may explain a change."""


def drift_of(records: Sequence[RunRecord], golden: GoldenRecord, alike: Likeness) -> tuple[Difference, ...]:
    """Return differing devices, drivers and packages, then container and variables, which a replayed golden lacks."""
    found = [difference for difference in alike.differences if difference.name in MACHINE]
    if golden.measured_on.environment is None:
        return tuple(found)
    there = _environment(golden.measured_on)
    each = (differences(there, _environment(record.provenance), blocks=False) for record in records)
    return tuple(dict.fromkeys((*found, *(difference for own in each for difference in own))))


def _environment(where: Provenance | MeasuredOn) -> dict[str, str | None]:
    variables = {f"environment.{name}": value for name, value in (where.environment or {}).items()}
    return {"container": where.container, **variables}


_JUDGED = (Verdict.PASS, Verdict.REGRESSION, Verdict.IMPROVEMENT)


def judge_case(case: CaseMaterial, plan: NightPlan, accident: Accident | None = None) -> CaseVerdict:
    """Judge a case by its runs so far: how they ended comes first, then the worst finding. Pure."""
    counting, golden = effective_runs(case.runs), case.golden
    verdict = CaseVerdict.of(
        planned=case.planned,
        outcome="inconclusive",
        exit_code=ExitCode.INCONCLUSIVE,
        reason="",
        findings=(),
        runs=tuple(case.runs),
        counted=tuple(run.record for run in counting if run.record and run.record.status == "ok"),
        metrics=None,
        golden_path=str(golden.path) if golden.golden else None,
        is_golden_damaged=golden.is_damaged,
    )
    comparison: Comparison | None = None
    if verdict.counted:
        verdict, comparison = _with_figures(verdict, case, plan, accident)
    outcome, reason, cause = _outcome(case, counting, comparison, verdict)
    expected = case.planned.expected if counting or case.planned.refused else None
    ended_well = bool(verdict.counted) and outcome not in ("failed", "oom")
    is_expected, remark = expectation(expected, outcome, started_on(plan), ended_well=ended_well)
    exit_code = exit_code_of(outcome, fail_on_improvement=plan.fail_on_improvement)
    found = {
        "outcome": outcome,
        "exit_code": ExitCode.OK if is_expected else exit_code,
        "reason": reason,
        "is_expected": is_expected,
        "is_infrastructure": cause is not None and bool(cause.infrastructure),
        "remark": remark,
    }
    return verdict.model_copy(update=found)


def suspected(verdict: CaseVerdict, against: Against | None = None) -> bool:
    """Return whether more runs should decide: a time is suspicious; with ``against`` also memory, and what is open."""
    if verdict.is_expected or verdict.outcome in ("failed", "oom"):
        return False
    if against and (verdict.outcome == "inconclusive" or _has_larger_peak(verdict)):
        return True
    return any(finding.evidence and finding.evidence.is_suspicious for finding in verdict.findings)


def _has_larger_peak(verdict: CaseVerdict) -> bool:
    worse = (finding for finding in verdict.findings if finding.verdict is Verdict.REGRESSION)
    return any(BY_NAME[finding.metric].gate == "memory" for finding in worse)


def _with_figures(
    verdict: CaseVerdict, case: CaseMaterial, plan: NightPlan, accident: Accident | None
) -> tuple[CaseVerdict, Comparison]:
    search, counted = case.golden, verdict.counted
    required = case.planned.is_golden_required
    options = GateOptions(accept_differences=plan.accept_differences, require_golden=required)
    metrics, comparison = compare_runs(counted, search, options)
    each, golden, alike = [derive(record) for record in counted], comparison.golden, comparison.likeness
    runs = list(zip(counted, each, strict=True))
    refined = (_refined(finding, runs, metrics, golden, case, plan, accident) for finding in comparison.findings)
    pairs = judge_pairs(case.planned, case.pair_runs, plan.against)
    unmeasured = (note for record in counted for note in record.unmeasured)
    found = {
        "findings": tuple(decided(finding, pairs, is_alone=golden is None) for finding in refined),
        "pairs": pairs,
        "metrics": metrics,
        "drift": drift_of(counted, golden, alike) if golden else (),
        "caveats": (*alike.caveats, *dict.fromkeys(unmeasured)),
    }
    return verdict.model_copy(update=found), comparison


def _refined(
    plain: Finding,
    each: Sequence[tuple[RunRecord, Metrics]],
    together: Metrics,
    golden: GoldenRecord | None,
    case: CaseMaterial,
    plan: NightPlan,
    accident: Accident | None,
) -> CaseFinding:
    """Return the plain gate's finding, judged over all runs where two real figures may be compared at all."""
    metric, like = BY_NAME[plain.metric], each[0][0]
    if golden is None or metric.gate is None or plain.golden is None:
        return CaseFinding(**vars(plain))
    threshold, allowed_by = limit_of(metric, case.planned, like, min(len(each), golden.num_runs))
    if plain.verdict not in _JUDGED:
        return CaseFinding(**vars(replace(plain, threshold=threshold)), allowed_by=allowed_by)
    values = [metric.read(metrics) for _, metrics in each]
    if metric.gate != "time":
        found = judge_memory(metric, values, metric.read(together), plain.golden, threshold)
        found = replace(found, allowed_by=allowed_by)
        return replace(found, verdict=plain.verdict, reason=plain.reason) if plain.reason else found
    reference = Reference(plain.golden, golden.metrics[metric.name].relative_spread, golden.num_runs)
    nights = nights_of(case.history, metric.name, like, golden.promoted_at, plan.started_at)
    confirming = {run.record.run_id for run in case.runs if run.record and run.purpose == "confirm"}
    sides: tuple[list[float], list[float]] = ([], [])
    for (record, _), value in zip(each, values, strict=True):
        if value is not None:
            sides[record.run_id in confirming].append(value)
    return judge_time(metric, sides, reference, nights, threshold, accident, allowed_by=allowed_by)


def worst_accident(cases: Sequence[CaseMaterial], before: str) -> Accident | None:
    """Return the worst single night that any of the cases had lately, by its throughput."""
    metric, worst = BY_NAME[SPEED], None
    for case in cases:
        golden = case.golden.golden
        like = next((run.record for run in case.runs if run.record and run.record.status == "ok"), None)
        if like is None or golden is None:
            continue
        nights = nights_of(case.history, metric.name, like, golden.promoted_at, before)
        found = accident_in(nights, limit_of(metric, case.planned, like, min(len(case.runs), golden.num_runs))[0])
        if found is not None and (worst is None or abs(found) > abs(worst.change)):
            worst = Accident(case.planned.name, found)
    return worst


def _outcome(
    case: CaseMaterial, counting: Sequence[CaseRun], comparison: Comparison | None, verdict: CaseVerdict
) -> tuple[Outcome, str, CaseRun | None]:
    if case.planned.refused:
        return "failed", case.planned.refused, None
    ended = bad_end(counting)
    if ended:
        return ended[0], how_it_ended(ended[1]), ended[1]
    if comparison is None:
        return "inconclusive", "interrupted before a run finished" if counting else "not run yet", None
    if comparison.golden is None and not (verdict.pairs and verdict.pairs.findings):
        is_lacking = case.planned.is_golden_required or case.golden.is_damaged
        outcome: Outcome = "inconclusive" if is_lacking else "pass"
        return outcome, comparison.note, None
    return *figures_outcome(verdict.findings), None


_MEASURED = ("pass", "improvement", "inconclusive", "regression")
"""Outcomes of nights that measured something."""


def nights_of(history: Sequence[HistoryRecord], metric: str, like: RunRecord, since: str, before: str) -> list[Night]:
    """Return the nights before ``before`` that measured ``metric`` as ``like`` did, oldest first."""
    end, promoted = utc_time(before), utc_time(since)
    measured = [
        record
        for record in sorted(history, key=started)
        if record.night_id
        and record.status == "ok"
        and not record.suspect
        and record.outcome in _MEASURED
        and _is_like(record, like)
        and started(record) < end
        and (figure := record.metrics.get(metric)) is not None
        and figure.value > 0
    ]
    return [
        Night(night.values(metric), started(night.records[0]) < promoted, night.records[0].outcome == "regression")
        for night in series.nights_of(measured)
    ]


def _is_like(record: HistoryRecord, like: RunRecord) -> bool:
    here = like.provenance
    return (
        record.fingerprint == like.fingerprint
        and record.formula_version == FORMULA_VERSION
        and record.device_name == measured_device(like)
        and record.driver_version == here.driver_version
        and all(record.versions.get(name) == here.versions.get(name) for name in SOFTWARE)
    )


def started_on(plan: NightPlan) -> date:
    """Return the day (UTC) on which the night began: judged again later, it expects what it expected then."""
    return utc_time(plan.started_at).date()
