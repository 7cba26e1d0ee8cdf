"""One case of a night: how its runs ended, what they measured, and what the suite expected of it."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ExitCode
from harness.history.record import HistoryFigure, Occasion, history_record
from harness.judge.derive import derive
from harness.nightly.case import judge_case, suspected, worst_accident
from harness.nightly.values import CaseMaterial, CaseRun
from harness.nightly.words import answer, threshold_text
from harness.records.batches import Build
from harness.records.goldens import GoldenSearch
from harness.records.night import Against, ExpectedFailureRecord, PlannedCase, RefusedCase
from harness.records.rank import Failure, MemoryRecord
from tests.nightly.night_recordings import plan_of

RULES = plan_of()
SHAPE = (1.0, 1.005, 0.995, 1.002, 0.998)


@pytest.fixture(name="spec")
def _spec(make_spec):
    return make_spec(num_gpus=1, parallelism={}, measure={"max_steps": 20})


@pytest.fixture(name="case")
def _case(spec, make_record, make_golden) -> Any:
    """A case whose runs take ``seconds`` a step, against a golden of five runs of one second, or of ``golden``."""

    def build(seconds: tuple[float, ...] = SHAPE, spec: Any = spec, **changes: Any) -> CaseMaterial:
        base = make_record(spec)
        metrics = {"tflops_per_gpu": derive(base).tflops_per_gpu.median, "peak_allocated_bytes": 58_000_000_000}
        golden = make_golden(base, metrics, num_runs=5, **changes.pop("golden", {}))
        search = changes.pop("search", GoldenSearch(golden, Path("golden.json")))
        per_run = changes.pop("per_run", {})
        runs = changes.pop("runs", None) or tuple(
            ended(number, make_record(spec, time_s, run_id=f"run{number}", **per_run))
            for number, time_s in enumerate(seconds, 1)
        )
        history = changes.pop("history", ())
        return CaseMaterial(PlannedCase(name="llama", spec=spec, repeats=5, **changes), runs, search, history)

    return build


def ended(number, record, purpose="repeat", infrastructure=""):
    return CaseRun(number, purpose, "", Path(f"runs/{number}"), record, infrastructure=infrastructure)


@pytest.fixture(name="failed")
def _failed(spec, make_record):
    def build(text="rank 0 failed: it broke", status="failed", kind="error"):
        rank_failure = Failure(kind=kind, message=text)
        record = make_record(spec, status=status, failure=text)
        return record.model_copy(update={"ranks": (record.ranks[0].model_copy(update={"failure": rank_failure}),)})

    return build


def finding(verdict, name="tflops_per_gpu"):
    return next(finding for finding in verdict.findings if finding.metric == name)


@pytest.fixture(name="nights")
def _nights(spec, make_record):
    """Twenty nights of five runs at one second a step."""
    occasions = [Occasion(night_id=f"night{day}", outcome="pass") for day in range(20)]
    return [
        history_record(
            make_record(
                spec, time_s, run_id=f"h{day}-{time_s}", provenance={"started_at": f"2026-01-{day + 4:02d}T03:00:00Z"}
            ),
            derive(make_record(spec, time_s)),
            occasion,
        )
        for day, occasion in enumerate(occasions)
        for time_s in SHAPE
    ]


def test_runs_like_the_golden_pass_with_evidence(case):
    verdict = judge_case(case(), RULES)
    assert (verdict.outcome, verdict.exit_code, verdict.reason) == ("pass", ExitCode.OK, "")
    evidence = finding(verdict).evidence
    assert (evidence.num_runs, evidence.num_golden_runs, evidence.num_nights) == (5, 5, 0)
    assert (len(verdict.counted), verdict.golden_path) == (5, "golden.json")
    assert not suspected(verdict)


def test_the_nights_of_history_take_part_and_the_median_of_the_runs_is_judged(case, nights):
    slower = (1.08, 1.08, 1.08, 1.5, 0.9)
    unknown, known = judge_case(case(slower), RULES), judge_case(case(slower, history=nights), RULES)
    assert [finding(each).evidence.num_nights for each in (unknown, known)] == [0, 20]
    assert finding(known).change == pytest.approx(1 / 1.08 - 1, abs=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"night_id": ""}, {"status": "failed"}, {"suspect": ("throttled",)}, {"outcome": "failed"}, {"outcome": None},
        {"fingerprint": "f"}, {"formula_version": "0"}, {"device_name": "other"}, {"driver_version": "1"},
        {"versions": {"torch": "1"}}, {"metrics": {}}, {"metrics": {"tflops_per_gpu": HistoryFigure(value=0.0)}}, {"started_at": "2026-03-01T00:00:00Z"},
    ],
)  # fmt: skip
def test_only_nights_that_measured_the_same_before_tonight_take_part(case, nights, changes):
    others = [each.model_copy(update=changes) for each in nights[:5]]
    rules = plan_of(started_at="2026-02-28T00:00:00Z")
    assert finding(judge_case(case(history=[*others, *nights[5:]]), rules)).evidence.num_nights == 19


def test_one_slow_run_is_suspected_and_further_runs_settle_it(case, make_record, spec):
    first = case((1.1,))
    look = judge_case(first, RULES)
    assert (look.outcome, suspected(look)) == ("inconclusive", True)
    confirmed = [*first.runs, *(ended(n, make_record(spec, s), "confirm") for n, s in ((2, 1.1), (3, 1.101)))]
    assert judge_case(case(runs=confirmed), RULES).outcome == "regression"
    cleared = [*first.runs, *(ended(n, make_record(spec, s), "confirm") for n, s in ((2, 1.0), (3, 1.0)))]
    assert judge_case(case(runs=cleared), RULES).outcome == "inconclusive"


def test_a_second_night_confirms_and_a_red_night_is_no_part_of_the_level(case, nights, make_record, spec):
    def after(seconds, outcome):
        record = make_record(spec, seconds, run_id=outcome, provenance={"started_at": "2026-01-28T03:00:00Z"})
        night = history_record(record, derive(record), Occasion(night_id=outcome, outcome=outcome))
        return judge_case(case((1.1,), history=[*nights, night]), RULES)

    assert [after(1.1, outcome).outcome for outcome in ("inconclusive", "regression")] == ["regression"] * 2
    assert after(1.0, "inconclusive").outcome == "inconclusive"
    counted = [finding(after(1.0, outcome)).evidence.num_nights for outcome in ("inconclusive", "regression")]
    assert counted == [21, 20]


def test_an_accident_of_any_case_is_found_in_its_history(case, nights, make_record, spec):
    def after(seconds):
        odd = make_record(spec, seconds, run_id="odd", provenance={"started_at": "2026-01-15T01:00:00Z"})
        record = history_record(odd, derive(odd), Occasion(night_id="odd", outcome="inconclusive"))
        return case(history=[*nights, record])

    calm, shaken = case(history=nights), after(1.4)
    assert worst_accident([calm], RULES.started_at) is None
    assert worst_accident([calm, after(1.2), shaken, after(1.2)], RULES.started_at).change == pytest.approx(
        1 / 1.4 - 1, abs=0.01
    )
    assert worst_accident([shaken], "2026-01-10T00:00:00Z") is None


def test_a_cases_own_threshold_replaces_the_rows(case):
    slower = tuple(time_s / 0.93 for time_s in SHAPE)
    assert judge_case(case(slower), RULES).outcome == "inconclusive"
    assert judge_case(case(slower, thresholds={"tflops_per_gpu": 0.1}), RULES).outcome == "pass"
    assert judge_case(case(thresholds={"peak_allocated_bytes": 0.5}), RULES).outcome == "pass"


def peaks(spec, make_record, *peak_bytes):
    return tuple(
        ended(number, make_record(spec, ranks=(make_record(spec).ranks[0].model_copy(
            update={"memory": MemoryRecord(meter="cuda", max_allocated_bytes=peak)}),)))
        for number, peak in enumerate(peak_bytes, 1)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("gigabytes", "outcome"),
    [((58, 58), "pass"), ((65, 65), "regression"), ((58, 65), "inconclusive"), ((50, 50), "improvement"),
     ((50, 58), "pass")],
)  # fmt: skip
def test_memory_is_a_regression_only_where_every_run_is_beyond(case, spec, make_record, gigabytes, outcome):
    runs = peaks(spec, make_record, *(peak * 10**9 for peak in gigabytes))
    verdict = judge_case(case(runs=runs), RULES)
    assert verdict.outcome == outcome
    if outcome == "inconclusive":
        found = finding(verdict, "peak_allocated_bytes")
        assert re.fullmatch(r"1 of 2 .*: \+0.0 %, \+12.1 %", found.reason)


def test_runs_in_doubt_are_inconclusive_and_not_confirmed(case):
    slower = tuple(time_s / 0.9 for time_s in SHAPE)
    verdict = judge_case(case(slower, per_run={"suspect": ("GPU 0 of node0 was throttled: hw_slowdown",)}), RULES)
    assert (verdict.outcome, verdict.exit_code) == ("inconclusive", ExitCode.INCONCLUSIVE)
    assert "throttled" in verdict.reason
    assert not suspected(verdict)


def test_a_build_that_recomputes_something_else_is_a_regression_by_itself(case, make_night):
    built = "the built layers recompute nothing, expected mlp in 8 layers"
    verdict = judge_case(case(per_run={"suspect": (built,)}), RULES)
    assert (verdict.outcome, finding(verdict, "peak_allocated_bytes").reason) == ("regression", built)
    assert built in answer(make_night(cases=(verdict,)))


def test_other_software_is_inconclusive_unless_accepted_and_drift_either_way(case):
    other = {"per_run": {"provenance": {"driver_version": "999.0"}}}
    blocked = judge_case(case(**other), RULES)
    accepting = plan_of(accept_differences=("driver_version", "model.moe.moe_router_topk"))
    accepted = judge_case(case(**other), accepting)
    assert (blocked.outcome, accepted.outcome) == ("inconclusive", "pass")
    assert [d.text for d in blocked.drift] == ["driver_version: golden 550.54.15, here 999.0"]
    assert [d.name for d in accepted.drift] == ["driver_version"]


def test_variables_that_changed_since_the_golden_are_drift_that_does_not_block(case, spec, make_record, make_golden):
    base = case().golden.golden
    where = base.measured_on.model_copy(update={"environment": {"NCCL_ALGO": "Ring", "A": "1"}})
    search = GoldenSearch(base.model_copy(update={"measured_on": where}), Path("golden.json"))
    verdict = judge_case(case(search=search, per_run={"provenance": {"environment": {"A": "1", "B": "2"}}}), RULES)
    assert verdict.outcome == "pass"
    assert [d.text for d in verdict.drift] == [
        "environment.B: golden none, here 2",
        "environment.NCCL_ALGO: golden Ring, here none",
    ]


def test_no_golden_is_inconclusive_where_one_is_required(case):
    none = GoldenSearch(None, None, "why")
    required, optional = (
        judge_case(case(search=none, is_golden_required=is_required), RULES) for is_required in (True, False)
    )
    assert (required.outcome, required.reason) == ("inconclusive", "why")
    assert (optional.outcome, optional.reason) == ("pass", "why")


def test_a_run_that_failed_fails_the_case_and_figures_of_the_others_stay(case, failed):
    runs = [*case().runs, ended(6, failed())]
    verdict = judge_case(case(runs=runs), RULES)
    assert (verdict.outcome, verdict.exit_code, verdict.reason) == (
        "failed",
        ExitCode.RUN_FAILED,
        "run 6: rank 0 failed: it broke",
    )
    assert (len(verdict.counted), verdict.is_infrastructure, suspected(verdict)) == (5, False, False)


def test_a_retry_that_ended_well_cures_a_fault_of_the_machine(case, failed, make_record, spec):
    faulty = ended(1, failed("EADDRINUSE"), infrastructure="port in use")
    retried = ended(2, make_record(spec), "retry")
    alone, cured = (judge_case(case(runs=runs), RULES) for runs in ([faulty], [faulty, retried]))
    assert (alone.outcome, alone.is_infrastructure) == ("failed", True)
    assert alone.reason == "run 1: infrastructure (port in use): EADDRINUSE"
    assert (cured.outcome, len(cured.runs), len(cured.counted)) == ("pass", 2, 1)


def test_a_retry_cures_no_failure_of_the_code(case, failed, make_record, spec):
    runs = [ended(1, failed()), ended(2, make_record(spec), "retry")]
    assert judge_case(case(runs=runs), RULES).outcome == "failed"


def test_a_run_that_was_never_committed_failed(case):
    verdict = judge_case(case(runs=[ended(1, None)]), RULES)
    assert (verdict.outcome, verdict.reason.startswith("run 1: "), verdict.metrics) == ("failed", True, None)


def test_a_case_that_has_not_run_or_was_interrupted_is_inconclusive(case, make_record, spec):
    interrupted = ended(1, make_record(spec, status="interrupted", failure="SIGINT"))
    empty = CaseMaterial(case().planned, (), case().golden)
    assert [judge_case(each, RULES).outcome for each in (empty, case(runs=[interrupted]))] == ["inconclusive"] * 2


def test_a_refused_case_failed_without_a_run(case):
    refused = CaseMaterial(RefusedCase(name="x", repeats=1, refused="rule R1"), (), GoldenSearch(None, None))
    verdict = judge_case(refused, RULES)
    assert (verdict.outcome, verdict.exit_code, verdict.reason) == ("failed", ExitCode.RUN_FAILED, "rule R1")


@pytest.mark.parametrize(
    ("until", "exit_code", "is_expected"),
    [("2026-02-01", ExitCode.OK, True), ("2026-01-31", ExitCode.OUT_OF_MEMORY, False)],
)
def test_an_expected_failure_is_not_red_until_its_day_is_over(case, failed, until, exit_code, is_expected):
    expected = ExpectedFailureRecord(outcome="oom", until=until, reason="too big")
    runs = [ended(1, failed("CUDA", "oom", "oom"))]
    verdict = judge_case(case(runs=runs, expected=expected), RULES)
    assert (verdict.outcome, verdict.exit_code) == ("oom", exit_code)
    assert verdict.is_expected is is_expected and until in verdict.remark and "too big" in verdict.remark


def test_an_expected_regression_is_not_confirmed(case):
    expected = ExpectedFailureRecord(outcome="regression", until="2026-03-01", reason="known")
    slow = case(tuple(time_s / 0.9 for time_s in SHAPE), expected=expected)
    runs = [replace(run, purpose="confirm") if run.number > 3 else run for run in slow.runs]
    verdict = judge_case(replace(slow, runs=runs), RULES)
    assert (verdict.outcome, verdict.is_expected, suspected(verdict)) == ("regression", True, False)


def test_a_replay_is_judged_and_reports_that_nothing_was_measured(case):
    verdict = judge_case(case(per_run={"notes": ("replayed from x",)}), RULES)
    assert (verdict.outcome, verdict.caveats) == ("pass", ("replayed from x",))


def test_the_gate_and_the_figures_of_the_case_are_the_median_of_the_runs(case):
    verdict = judge_case(case((1.0, 1.2, 1.1, 1.4, 1.0)), RULES)
    assert verdict.metrics.step_time_s.median == pytest.approx(1.1)
    assert finding(verdict).current == pytest.approx(verdict.metrics.tflops_per_gpu.median)


def test_a_larger_peak_runs_pairs_but_no_confirming_runs(case, spec, make_record):
    against = Against(source="/old", num_pairs=5, build=Build(python="/old/bin/python"))
    for gigabytes, outcome in ((65, "regression"), (58, "pass")):
        verdict = judge_case(case(runs=peaks(spec, make_record, *[gigabytes * 10**9] * 2)), RULES)
        is_red = outcome == "regression"
        assert (verdict.outcome, suspected(verdict), suspected(verdict, against)) == (outcome, False, is_red)


def test_a_finding_has_the_one_threshold_that_decides_and_what_sets_it(case, nights):
    own, wide = {"thresholds": {"tflops_per_gpu": 0.02}}, (0.9, 1.0, 1.15)
    rows = (
        (case(history=nights), 0.05, "default"),
        (case(history=nights, **own), 0.02, "the suite"),
        (case(per_run={"provenance": {"driver_version": "9"}}, **own), 0.02, "the suite"),
        (case(**own), 0.053, "3 spreads"),
        (case(wide, **own), 0.262, "3 spreads"),
    )
    for material, threshold, allowed_by in rows:
        found = finding(judge_case(material, RULES))
        assert (found.threshold, found.allowed_by) == (pytest.approx(threshold, abs=1e-3), allowed_by)
        assert threshold_text(found) == f"{found.threshold * 100:.3g} % by {allowed_by}"
