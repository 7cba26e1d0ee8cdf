"""`mbr-perf nightly` as people call it, with recorded runs in place of training."""

import json
import re

import pytest

from harness.batch.engine import holding
from harness.history.store import read_history
from harness.records.batches import EVENTS
from harness.records.night import run_dir_of
from tests.conftest import golden_of_other_lr
from tests.nightly.night_recordings import OOM, PORT_TAKEN, SECONDS, cut_short


def cases_of(answer):
    return {case["name"]: case for case in json.loads(answer.out)["cases"]}


def runs_of(case):
    return [(run["number"], run["purpose"]) for run in case["runs"]]


@pytest.fixture(name="measured")
def _measured(stage, nightly):
    """A case of three repeats, its golden ``faster`` than it is; what confirms it takes ``later`` seconds."""

    def measure(faster=1.0, later=SECONDS, **more):
        made = stage(dense="repeats: 3", **more)
        for number in range(5):
            made.record("dense", number, SECONDS if number < 3 else later)
        nightly(made, "--only", "dense", "--confirm", "0")
        made.promote("dense", faster)
        return made

    return measure


@pytest.mark.slow
def test_a_golden_of_an_earlier_recipe_point_makes_its_case_inconclusive(measured, nightly):
    stage = measured()
    (path,) = stage.goldens.glob("*/*.json")
    path.write_text(golden_of_other_lr(path))
    answer = nightly(stage, "--json")
    case = cases_of(answer)["dense"]
    assert (answer.code, case["outcome"]) == (6, "inconclusive")
    assert "optimizer.lr: golden 0.5, here 0.0001" in case["reason"]
    assert "\ndense: " in nightly(stage, "--dryrun").out


def test_a_case_that_fails_stops_no_other_and_its_repeats_are_not_run(stage, nightly):
    made = stage(first="repeats: 3, golden: optional", second="golden: optional, request: {recompute: mlp}")
    made.record("first", 0, failure=OOM)
    made.record("second", 0)
    answer = nightly(made, "--json")
    cases = cases_of(answer)
    assert {name: case["outcome"] for name, case in cases.items()} == {"first": "oom", "second": "pass"}
    assert (answer.code, runs_of(cases["first"])) == (4, [(0, "repeat")])


def test_a_night_that_is_judged_again_expects_what_it_expected_when_it_began(stage, nightly, mbr_perf):
    made = stage(dense="expected: {outcome: oom, until: '2021-01-01', reason: too large}")
    made.record("dense", 0, failure=OOM)
    assert cases_of(nightly(made, "--json"))["dense"]["is_expected"] is False
    plan = made.newest().night_dir / "night.json"
    document = json.loads(plan.read_text()) | {"started_at": "2020-12-31T23:00:00+00:00"}
    plan.write_text(json.dumps(document))
    again = mbr_perf("nightly", "--resume", str(plan.parent), "--json")
    assert (again.code, cases_of(again)["dense"]["is_expected"]) == (0, True)


def test_a_named_fault_of_the_machines_is_tried_again_and_recorded(stage, nightly):
    made = stage(dense="golden: optional")
    made.record("dense", 0, failure=PORT_TAKEN)
    made.record("dense", 1)
    answer = nightly(made, "--json")
    case = cases_of(answer)["dense"]
    assert (answer.code, case["outcome"], runs_of(case)) == (0, "pass", [(0, "repeat"), (1, "retry")])
    assert [run["infrastructure"] for run in case["runs"]] == ["port in use", None]


def test_a_case_that_a_rule_forbids_is_refused_and_the_others_run(stage, nightly):
    made = stage(
        dense="golden: optional", wrong="request: {recompute: moe_act}", unknown="request: {variant: none_such}"
    )
    made.record("dense", 0)
    answer = nightly(made, "--json")
    cases = cases_of(answer)
    assert (answer.code, cases["dense"]["outcome"]) == (3, "pass")
    assert [cases[name]["outcome"] for name in ("wrong", "unknown")] == ["failed", "failed"]
    assert "none_such" in cases["unknown"]["reason"]


def test_every_run_of_the_night_is_added_to_history(measured, nightly, tmp_path):
    stage = measured(faster=1.2)
    nightly(stage)
    night = stage.newest().plan.night_id
    kept = [record for record in read_history(tmp_path / "results") if record.night_id == night]
    assert [(record.suite_case, record.purpose, record.outcome) for record in kept] == [
        *[("dense", "repeat", "regression")] * 3,
        *[("dense", "confirm", "regression")] * 3,
    ]


@pytest.mark.slow
def test_a_night_that_was_killed_anywhere_and_resumed_equals_an_unbroken_one(measured, nightly, mbr_perf, tmp_path):
    stage = measured(faster=1.2, second="golden: optional, request: {recompute: mlp}")
    stage.record("second", 0, failure=PORT_TAKEN)
    stage.record("second", 1)
    unbroken = cases_of(nightly(stage, "--json"))
    whole = stage.newest()
    assert len(whole.events) == 9
    for num_events in range(len(whole.events)):
        copy = tmp_path / "results" / "nights" / f"cut-{num_events}"
        cut_short(whole.night_dir, num_events, copy)
        answer = mbr_perf("nightly", "--resume", copy, "--json")
        resumed = cases_of(answer)
        assert answer.code == 5
        for name, case in unbroken.items():
            assert runs_of(resumed[name]) == runs_of(case)
            assert [resumed[name][key] for key in ("outcome", "reason")] == [case[key] for key in ("outcome", "reason")]


@pytest.mark.slow
def test_a_finished_night_is_only_judged_again(measured, nightly, mbr_perf):
    stage = measured()
    first = json.loads(nightly(stage, "--json").out)
    events = (stage.newest().night_dir / EVENTS).read_bytes()
    answer = mbr_perf("nightly", "--resume", first["night_id"], "--json", "--results_dir", stage.root / "results")
    assert json.loads(answer.out) == first
    assert (stage.newest().night_dir / EVENTS).read_bytes() == events


def test_a_night_at_work_is_not_joined(measured, mbr_perf):
    night_dir = measured().newest().night_dir
    with holding(night_dir, "night"):
        answer = mbr_perf("nightly", "--resume", night_dir)
    assert (answer.code, "still running" in answer.err) == (2, True)


def test_resume_takes_everything_from_the_night(measured, mbr_perf):
    answer = mbr_perf("nightly", "--resume", measured().newest().night_dir, "--confirm", "5", "--only", "x")
    assert (answer.code, "--only, --confirm " in answer.err) == (2, True)


def files(folder):
    """All but the index of history, which reading it makes."""
    return sorted(path for path in folder.rglob("*") if path.suffix != ".sqlite")


def test_a_dry_run_shows_what_would_run_and_writes_nothing(measured, nightly):
    stage = measured(wrong="request: {recompute: moe_act}", other="request: {recompute: mlp}, repeats: 2")
    before = files(stage.root)
    answer = nightly(stage, "--dryrun")
    assert answer.code == 0
    rows = {
        line.split()[0]: line for line in answer.out.splitlines() if line.startswith(("dense ", "wrong ", "other "))
    }
    golden, last, would_run = re.split(r"\s{2,}", rows["dense"])[-3:]
    assert (golden, last.split()[0], would_run) == ("yes", "inconclusive", "3 runs")
    assert "wrong" not in rows and "\nwrong: refused: " in answer.out
    assert rows["other"].endswith("2 runs")
    assert files(stage.root) == before


@pytest.mark.parametrize("more", [(), ("--dryrun",)])
def test_a_night_of_which_every_case_is_refused_is_a_wrong_request(stage, nightly, more):
    made = stage(wrong="request: {recompute: moe_act}", other="request: {recompute: 'moe_act,mlp'}")
    answer = nightly(made, *more)
    assert (answer.code, "other: " in answer.out + answer.err) == (2, True)
    assert not made.nights.exists()


@pytest.mark.slow
def test_a_machine_on_which_no_case_can_start_is_reported_before_anything_is_written(mbr_perf, tmp_path):
    answer = mbr_perf("nightly", "h100_nightly", "--only", "llama3_70b.sft.*", "--results_dir", tmp_path)
    assert answer.code == 2
    assert "no case of h100_nightly" in answer.err and "32 GPUs need 4 nodes" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_every_command_that_takes_no_night_reports_that_it_is_one_and_what_to_name(measured, mbr_perf):
    night_dir = measured().newest().night_dir
    run = str(run_dir_of(night_dir, "dense", 0))
    for command, expected, instead in (
        (["explain"], "is a night, not a run", run),
        (["compare"], "is a night, not a run", run),
        (["compare", run, "--repeat"], "is a night, not a run", run),
        (["compare", run], "is a night, not a run", run),
        (["diagnose"], "is a night, not a run", run),
        (["diagnose", run], "is a night, not a run", run),
        (["report"], "is a night, not a sweep", f"mbr-perf nightly --resume {night_dir}"),
    ):
        for reference in (night_dir, night_dir / "night.json", night_dir.name, night_dir.name[-8:]):
            answer = mbr_perf(*command, reference, "--results_dir", night_dir.parents[1])
            assert (answer.code, expected in answer.err, instead in answer.err) == (2, True, True), command
