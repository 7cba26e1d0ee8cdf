"""scripts/bench and scripts/bench-gate: what they conclude from samples, and what they draw."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.judge.gate import Verdict

ROOT = Path(__file__).parents[2]
FOLDERS = ("bench.d", "bench_gate.d")


@pytest.fixture(name="trial")
def _trial(module):
    def build(suites, **changes):
        draws = module("gate_draws")
        scenario = draws.Scenario("x", **changes)
        return module("gate_trials").Trial(scenario, draws.draw(scenario, suites, seed=1))

    return build


@pytest.mark.slow
def test_changes_are_found_and_no_night_without_one_is_red(trial):
    rates = trial(40, noise=0.01).rates(40)
    assert (rates.false_red, rates.yellow) == (0, 0)
    assert rates.minus_8_first_night == 1 and rates.minus_6_second_night >= 0.95
    assert rates.minus_5_third_night >= 0.8


@pytest.mark.slow
def test_accidents_of_other_cases_make_the_first_bad_night_yellow(trial):
    calm, shaken = (trial(10, accidents=share) for share in (0.0, 0.03))
    assert sum(calm.is_found(suite, -0.08, 1) for suite in range(10)) == 10
    assert sum(shaken.is_found(suite, -0.08, 1) for suite in range(10)) == 0
    assert sum(shaken.is_found(suite, -0.08, 2) for suite in range(10)) >= 7


@pytest.mark.slow
def test_a_case_that_is_skipped_as_clear_would_pass(trial):
    found = trial(2, night_noise=0.02, night_degrees=3, before_golden=20)
    clear = [case for case in range(100) if case not in found._unclear]
    assert 20 < len(clear) < 100
    verdicts = {found._judged(case, 0, 0.0, found._nights(case))[0].verdict for case in clear}
    assert verdicts <= {Verdict.PASS, Verdict.IMPROVEMENT}


@pytest.mark.slow
def test_draws_are_the_same_every_time_and_of_the_noise_they_claim(module):
    draws = module("gate_draws")
    scenario = draws.Scenario("x", noise=0.02, night_noise=0.03, heavy_tails=True, redrawn=1.0)
    first, again = (draws.draw(scenario, 4, seed=5) for _ in range(2))
    assert (first.history == again.history).all()
    assert first.history.shape == (200, 40, 5)
    assert first.history.std(axis=-1, ddof=1).mean() == pytest.approx(0.02, rel=0.15)
    assert first.history.mean(axis=-1).std() == pytest.approx(0.031, rel=0.05)
    same = draws.draw(replace(scenario, redrawn=0.0), 4, seed=5)
    moved = [abs(each.confirming.mean(axis=-1) - each.repeats.mean(axis=-1)).mean() for each in (first, same)]
    assert moved[0] > 2 * moved[1]


def test_recorded_series_give_the_changes_of_nights_from_their_level(module, tmp_path):
    rows = [f"a,{value}" for value in (1.0, 1.0, 1.1, 1.0, 1.0)] + [f"b,{value}" for value in [2.0] * 6 + [1.0] * 6]
    (tmp_path / "x.csv").write_text("series,throughput_relative_to_median\n" + "\n".join(rows))
    found = module("gate_draws").read_series(tmp_path / "x.csv")
    assert found == (pytest.approx((0, 0, 0.1, 0, 0)), (0,) * 12)


@pytest.mark.slow
def test_a_bisect_needs_as_many_runs_and_is_right_as_often_as_the_kept_result_says(module):
    kept = json.loads((ROOT / "results" / "benchmarks" / "bisect.json").read_text())["rows"]
    assert kept[0]["histories"] >= 4000 and kept[0]["found"] >= 0.95
    for row, before in zip(module("bisect_trials").measure_bisects(100, 1), kept, strict=True):
        assert row["found"] >= before["found"] - 0.1 and row["wrong"] <= before["wrong"] + 0.06
        assert row["median_runs"] <= 1.15 * before["median_runs"]


def test_the_kept_result_names_every_goal_that_is_missed():
    kept = json.loads((ROOT / "results" / "benchmarks" / "gate.json").read_text())
    assert kept["suites"] >= 500
    for row in kept["rows"]:
        is_quiet = row.get("night_noise", 0) <= 0.013 and "recorded" not in row["name"]
        found = [name for name, goal in kept["goals"].items() if name != "false_red" and is_quiet and row[name] < goal]
        assert row["missed"] == found + ["false_red"] * (row["false_red"] > kept["goals"]["false_red"])
    met = {row["name"] for row in kept["rows"] if not row["missed"]}
    assert {"runs vary by 1 %", "nights differ by 1 %", "nights differ by 1.3 %"} <= met


def test_a_result_is_kept_with_its_machine(module, tmp_path):
    result = module("result")
    measured_on = {"processor": "A Processor", "num_cores": 2, "load_before": 3.5}
    path = result.keep(tmp_path / "new", result.Result("x", "an x", 3.0, 2.0, "s", {"n": 5}), measured_on)
    kept = json.loads(path.read_text())
    assert path.name == "x.json"
    assert (kept["value"], kept["goal"], kept["verdict"], kept["quiet"]) == (3.0, 2.0, "missed", False)
    assert kept["machine"].pop("load_after") >= 0
    assert kept["machine"] == measured_on
    assert result.is_quiet(measured_on | {"load_before": 0.9})


def test_noise_excuses_a_missed_goal_and_no_met_one(module):
    result = module("result").Result
    assert result("x", "an x", 1.0, 2.0, "s", {}, "busy").verdict == "met"
    assert result("x", "an x", 3.0, 2.0, "s", {}, "busy").verdict == "inconclusive"
