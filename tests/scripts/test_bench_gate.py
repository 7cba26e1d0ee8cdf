"""scripts/bench-gate: its goals on fewer draws, and what it draws."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("bench.d", "bench_gate.d")


@pytest.mark.slow
def test_no_more_than_one_night_in_a_hundred_has_a_false_alarm(module):
    alarms = module("gate_trials").false_alarms(module("gate_rows").USUAL, nights=100, confirm=2, seed=1)
    assert alarms.false_alarm.count <= 1
    assert alarms.confirmed_cases_per_night < 1


@pytest.mark.slow
@pytest.mark.parametrize(("change", "goal"), [(-0.05, 0.99), (-0.03, 0.90)])
def test_true_changes_are_found_by_five_repeats_with_confirmation(module, change, goal):
    found = module("gate_trials").detection(module("gate_rows").USUAL, change, cases=1000, confirm=2, seed=2)
    assert found.regression.interval[1] >= goal
    assert found.regression.value >= goal - 0.02


@pytest.mark.slow
def test_five_percent_on_one_run_misses_most_of_a_true_three_percent(module):
    found = module("gate_trials").detection(module("gate_rows").USUAL, -0.03, cases=500, confirm=2, seed=3)
    assert (found.plain_gate.value < 0.25, found.regression.value > 0.85) == (True, True)


@pytest.mark.slow
def test_draws_are_the_same_every_time_and_of_the_noise_they_claim(module):
    gate_draws = module("gate_draws")
    scenario = gate_draws.Scenario("x", noise=0.02, heavy_tails=True)
    first, again = (list(gate_draws.draws(scenario, -0.1, 400, 2, seed=5)) for _ in range(2))
    assert first == again
    assert {len(drawn.values) for drawn in first} == {7}
    mean = sum(value for drawn in first for value in drawn.values) / 2800
    assert mean == pytest.approx(630, rel=0.005)
    within = sum(drawn.history.within_sd for drawn in first) / 400
    assert within == pytest.approx(0.02, rel=0.1)


@pytest.mark.slow
def test_a_case_that_is_skipped_as_clear_would_pass(module):
    trials, draws = module("gate_trials"), module("gate_draws")
    scenario = draws.Scenario("x", night_noise=0.01, night_degrees=3, nights_before_golden=10)
    clear = [drawn for drawn in draws.draws(scenario, 0.0, 60, 2, seed=7) if trials._is_clear(drawn, 5)]
    assert 5 <= len(clear) < 50
    for drawn in clear:
        found = trials._judged(drawn, drawn.values, 5, drawn.history, None)
        assert (found.verdict.value in ("pass", "improvement"), found.was_confirmed) == (True, False)


def test_the_kept_result_meets_every_goal():
    kept = json.loads((ROOT / "results" / "benchmarks" / "gate.json").read_text())
    usual = kept["rows"][0]
    assert (usual["scenario"]["noise"], usual["scenario"]["repeats"], usual["confirm"]) == (0.01, 5, 2)
    assert usual["nights_without_change"]["false_alarm"]["num"] >= 1500
    assert [goal["name"] for goal in kept["goals"] if goal["verdict"] != "met"] == []
    assert len(kept["goals"]) == 8
