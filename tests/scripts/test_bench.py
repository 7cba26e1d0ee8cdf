"""scripts/bench: what it concludes from samples, and what it feeds the rules."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_processes_are_timed_and_failures_reported(module):
    processes = module("processes")
    done = processes.timed([sys.executable, "-c", "print(sum(range(3_000_000)))"])
    assert done.stdout == "4499998500000\n"
    assert done.cpu_s > 0
    assert done.wall_s > 0
    with pytest.raises(processes.BenchmarkFailedError, match=r"exited with 3: fell over"):
        processes.timed(["sh", "-c", "echo fell over >&2; exit 3"])


def test_an_unknown_benchmark_is_a_wrong_request():
    environment = {**os.environ, "MBR_PERF_NO_SETUP": "1", "PYTHON": sys.executable}
    command = [ROOT / "scripts" / "bench", "startup_helm"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no such benchmark: startup_helm" in done.stderr


@pytest.mark.train
@pytest.mark.slow
@pytest.mark.long
def test_a_bare_loop_trains_beside_the_harness_on_one_model(tmp_path, module):
    from harness.launch.environment import this_host
    from harness.measure.understanding import RunRequest, understand
    from harness.resolve.recipe import Request

    asked = Request(model_recipe_name="llama3_8b", gpu="cpu", max_steps=2)
    understood = understand(RunRequest(asked=asked), this_host(), tmp_path)
    (tmp_path / "spec.json").write_text(understood.spec.model_dump_json())
    share = module("paired").train_pairs(understood, tmp_path, 3)
    assert 0 < share < 0.5
    for rank in (0, 1):
        seconds = json.loads((tmp_path / f"seconds_{rank}.json").read_text())
        assert {kind: len(steps) for kind, steps in seconds.items()} == {"harness": 3, "bare": 3}
        assert min(min(steps) for steps in seconds.values()) > 0
        record = json.loads((tmp_path / "ranks" / f"rank_{rank:03d}.json").read_text())
        assert [step["step"] for step in record["steps"]] == [0, 1, 2]  # the harness recorded its own steps only


def test_an_interval_that_reaches_the_goal_is_reported(module):
    overhead = module("overhead")
    sure = overhead.ratio("x", [(1.001 + 1e-5 * n, 1.0) for n in range(100)], 0.001)
    assert (sure.verdict, sure.inconclusive) == ("met", "")
    assert sure.value == pytest.approx(1.0025, abs=2e-4)
    unsure = overhead.ratio("x", [(0.98 + 0.004 * n, 1.0) for n in range(20)], 0.0)
    assert unsure.verdict == "inconclusive"
    assert overhead.ratio("x", [(1.03, 1.0)] * 50, 0.0).verdict == "missed"
    assert overhead.ratio("x", [(0.96 + 0.005 * n, 1.0) for n in range(20)], 0.0).verdict == "inconclusive"


def test_noise_that_lowers_a_value_makes_a_met_goal_inconclusive(module):
    result = module("result").Result
    assert result("x", "an x", 1.0, 2.0, "s", {}, "busy").verdict == "met"
    assert result("x", "an x", 1.0, 2.0, "ratio", {}, "busy", noise_lowers=True).verdict == "inconclusive"
