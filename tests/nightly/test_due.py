"""Which runs of a night come next, from what lies on disk."""

from pathlib import Path

import pytest

from harness.nightly.batch import due_round, due_runs
from harness.records.night import NightCase, NightData, NightPlan, NightRun, PlannedCase, RefusedCase
from harness.records.rank import Failure

PORT_TAKEN = Failure(kind="error", message="RuntimeError: EADDRINUSE: address already in use", phase="start")
CRASH = Failure(kind="error", message="ValueError: no", phase="step", step=3)


def trusting(_):
    return ""


def suspicious(_):
    return "slower"


def plan(*cases, confirm=2, retries=1):
    return NightPlan(night_id="night", suite="suite", title="A suite", cases=cases, confirm=confirm, retries=retries,
                     command=("mbr-perf",), started_at="2026-01-02T03:04:05Z", mbr_perf="0.1.0")  # fmt: skip


@pytest.fixture(name="case")
def _case(make_record, make_spec):
    """A case with three repeats and these runs: (number, purpose, how it ended)."""
    spec = make_spec(gpu="cpu")
    records = {
        "ok": make_record(spec),
        "oom": make_record(spec, status="oom", failure="out of memory"),
        "crashed": make_record(spec, status="failed", failure=CRASH.message),
        "port": make_record(spec, status="failed", failure=PORT_TAKEN.message),
        "interrupted": make_record(spec, status="interrupted"),
        "lost": None,
    }

    def build(*runs, **changes):
        kind = RefusedCase if "refused" in changes else PlannedCase
        planned = kind(**{"name": "dense", "spec": spec, "repeats": 3} | changes)
        return NightCase(
            planned,
            tuple(NightRun(number, purpose, "slower", Path("run"), records[end]) for number, purpose, end in runs),
        )

    return build


def listed(due):
    return [(due_run.number, due_run.purpose) for due_run in due]


OK = tuple((number, "repeat", "ok") for number in range(3))


def test_first_all_repeats_are_due(case):
    assert listed(due_runs(plan(), case(), suspicious)) == [(0, "repeat"), (1, "repeat"), (2, "repeat")]


def test_a_case_that_passes_needs_no_more(case):
    assert due_runs(plan(), case(*OK), trusting) == ()


def test_a_suspected_regression_is_run_again_before_it_is_called_one(case):
    due = due_runs(plan(), case(*OK), suspicious)
    assert [(due_run.number, due_run.purpose, due_run.reason) for due_run in due] == [
        (3, "confirm", "slower"),
        (4, "confirm", "slower"),
    ]


def test_confirmation_that_was_begun_is_finished_whatever_its_first_run_measured(case):
    assert listed(due_runs(plan(), case(*OK, (3, "confirm", "ok")), trusting)) == [(4, "confirm")]


def test_after_confirmation_nothing_is_due(case):
    assert due_runs(plan(), case(*OK, (3, "confirm", "ok"), (4, "confirm", "ok")), suspicious) == ()


def test_without_confirm_a_suspicion_is_left_as_it_is(case):
    assert due_runs(plan(confirm=0), case(*OK), suspicious) == ()


@pytest.mark.parametrize("end", ["oom", "crashed"])
def test_the_remaining_repeats_of_a_case_that_ended_badly_are_not_run(case, end):
    assert due_runs(plan(), case((0, "repeat", "ok"), (1, "repeat", end)), suspicious) == ()


def test_a_named_fault_of_the_machines_is_tried_again_with_the_reason(case):
    (due,) = due_runs(plan(), case((0, "repeat", "port")), trusting)
    assert (due.number, due.purpose, due.reason) == (3, "retry", "run 0 ended by: port taken")


def test_a_retry_that_went_well_lets_the_case_go_on(case):
    assert listed(due_runs(plan(), case((0, "repeat", "port"), (3, "retry", "ok")), trusting)) == [
        (1, "repeat"),
        (2, "repeat"),
    ]


def test_retries_are_bounded(case):
    failed_twice = case((0, "repeat", "port"), (3, "retry", "port"))
    assert due_runs(plan(retries=1), failed_twice, trusting) == ()
    assert listed(due_runs(plan(retries=2), failed_twice, trusting)) == [(4, "retry")]
    assert due_runs(plan(retries=0), case((0, "repeat", "port")), trusting) == ()


def test_a_retry_that_ends_by_a_fault_of_the_code_is_the_end(case):
    assert due_runs(plan(retries=5), case((0, "repeat", "port"), (3, "retry", "crashed")), trusting) == ()


@pytest.mark.parametrize("end", ["interrupted", "lost"])
def test_a_run_that_was_begun_and_not_done_is_due_again_for_the_same_purpose(case, end):
    assert listed(due_runs(plan(), case(*OK, (3, "confirm", end)), trusting)) == [(3, "confirm"), (4, "confirm")]


def test_a_refused_case_is_never_run(case):
    assert due_runs(plan(), case(refused="rule T08"), suspicious) == ()


def test_a_round_takes_one_run_of_every_case_before_the_second_of_any(case):
    cases = (case(name="a", repeats=2), case(name="b", repeats=1))
    planned = plan(*(entry.planned for entry in cases))
    due = due_round(NightData(Path("night"), planned, cases, ()), trusting)
    assert [(due_run.entry.name, due_run.number) for due_run in due] == [("a", 0), ("b", 0), ("a", 1)]
