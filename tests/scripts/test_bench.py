"""scripts/bench: what it concludes from samples, and what it feeds the rules."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("bench.d",)


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
