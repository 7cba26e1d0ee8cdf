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


def test_noise_excuses_a_missed_goal_and_no_met_one(module):
    result = module("result").Result
    assert result("x", "an x", 1.0, 2.0, "s", {}, "busy").verdict == "met"
    assert result("x", "an x", 3.0, 2.0, "s", {}, "busy").verdict == "inconclusive"
