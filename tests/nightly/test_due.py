"""Which runs of a night come next, from what lies on disk."""

from pathlib import Path

import pytest

from harness.nightly.batch import due_round, due_runs
from harness.records.batches import Build
from harness.records.night import Against, NightCase, NightData, NightRun, PlannedCase, RefusedCase
from harness.records.rank import Failure
from tests.nightly.night_recordings import plan_of

PORT_TAKEN = Failure(kind="error", message="RuntimeError: EADDRINUSE: address already in use", phase="start")
CRASH = Failure(kind="error", message="ValueError: no", phase="step", step=3)


def trusting(_):
    return ""


def suspicious(_):
    return "slower"


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
        made = [NightRun(number, purpose, "slower", Path("run"), records[end]) for number, purpose, end in runs]
        sides = [tuple(run for run in made if (run.purpose == "pair") is pair) for pair in (False, True)]
        return NightCase(planned, *sides)

    return build


def listed(due):
    return [(due_run.number, due_run.purpose) for due_run in due]


OK = tuple((number, "repeat", "ok") for number in range(3))


CONFIRM = ((3, "confirm"), (4, "confirm"))
OLD = {"against": Against(source="/old", num_pairs=2, build=Build(python="/old/bin/python"))}
PAIRS = tuple((number, "pair") for number in range(3, 7))


@pytest.mark.parametrize(
    ("runs", "suspicion", "asked", "expected"),
    [
        ((), suspicious, {}, ((0, "repeat"), (1, "repeat"), (2, "repeat"))),
        (OK, trusting, {}, ()),
        (OK, suspicious, {}, CONFIRM),
        (OK, suspicious, {"confirm": 0}, ()),
        ((*OK, (3, "confirm", "ok")), trusting, {}, CONFIRM[1:]),
        ((*OK, (3, "confirm", "ok"), (4, "confirm", "ok")), suspicious, {}, ()),
        ((*OK, (3, "confirm", "interrupted")), trusting, {}, CONFIRM),
        ((*OK, (3, "confirm", "lost")), trusting, {}, CONFIRM),
        (((0, "repeat", "ok"), (1, "repeat", "oom")), suspicious, {}, ()),
        (((0, "repeat", "ok"), (1, "repeat", "crashed")), suspicious, {}, ()),
        (((0, "repeat", "port"),), trusting, {}, ((3, "retry"),)),
        (((0, "repeat", "port"),), trusting, {"retries": 0}, ()),
        (((0, "repeat", "port"), (3, "retry", "ok")), trusting, {}, ((1, "repeat"), (2, "repeat"))),
        (((0, "repeat", "port"), (3, "retry", "port")), trusting, {}, ()),
        (((0, "repeat", "port"), (3, "retry", "port")), trusting, {"retries": 2}, ((4, "retry"),)),
        (((0, "repeat", "port"), (3, "retry", "crashed")), trusting, {"retries": 5}, ()),
        (OK, suspicious, OLD, PAIRS),
        (OK, trusting, OLD, ()),
        ((*OK, (3, "pair", "ok"), (4, "pair", "interrupted")), trusting, OLD, PAIRS[1:]),
        ((*OK, (3, "pair", "lost"), (4, "pair", "ok")), trusting, OLD, (PAIRS[0], *PAIRS[2:])),
        ((*OK, (3, "pair", "crashed")), suspicious, OLD, ()),
        ((*OK, (3, "pair", "oom")), suspicious, OLD, ()),
    ],
)
def test_a_case_gets_its_repeats_then_retries_or_confirmations(case, runs, suspicion, asked, expected):
    """Confirmations that were begun are finished, whatever the first one measured; a failure of the code is the end."""
    assert tuple(listed(due_runs(plan_of(**asked), case(*runs), suspicion))) == expected


def test_why_a_run_is_due_is_recorded(case):
    (retry,) = due_runs(plan_of(), case((0, "repeat", "port")), trusting)
    assert retry.reason == "run 0 ended by: port in use"
    assert {due.reason for due in due_runs(plan_of(), case(*OK), suspicious)} == {"slower"}
    assert [due.reason for due in due_runs(plan_of(**OLD), case(*OK), suspicious)] == ["old", "new", "new", "old"]


def test_a_refused_case_is_never_run(case):
    refused = case(refused="rule T08")
    assert due_runs(plan_of(), refused, suspicious) == ()
    assert due_round(NightData(Path("night"), plan_of(refused.planned), (refused,), ()), suspicious) == ()


def test_a_round_takes_one_run_of_every_case_before_the_second_of_any(case):
    cases = (case(name="a", repeats=2), case(name="b", repeats=1))
    planned = plan_of(*(entry.planned for entry in cases))
    due = due_round(NightData(Path("night"), planned, cases, ()), trusting)
    assert [(due_run.entry.name, due_run.number) for due_run in due] == [("a", 0), ("b", 0), ("a", 1)]
