"""scripts/bench: what it concludes from samples, and what it feeds the rules."""

import importlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def module(monkeypatch):
    """A module of scripts/bench.d by name; the folder is no package."""
    monkeypatch.syspath_prepend(ROOT / "scripts" / "bench.d")
    return importlib.import_module


@pytest.mark.parametrize(
    ("under_harness", "bare", "value", "verdict"),
    [
        ([[1.0, 1.0, 1.0]] * 3, [[1.0, 1.0, 1.0]] * 3, 1.0, "met"),
        ([[1.005] * 3] * 3, [[1.0] * 3] * 3, 1.005, "met"),
        ([[1.10] * 3] * 3, [[1.0] * 3] * 3, 1.1, "missed"),
        ([[1.0], [1.10], [1.3]], [[1.0], [1.0], [1.0]], 1.1, "inconclusive"),
        ([[9.0, 1.0, 1.0]] * 3, [[1.0, 1.0, 9.0]] * 3, 1.0, "met"),
    ],
)
def test_overhead_is_a_ratio_of_medians_that_noise_can_spoil(module, under_harness, bare, value, verdict):
    result = module("overhead").ratio("x", under_harness, bare)
    assert (result.value, result.verdict) == (value, verdict)


def test_the_spread_of_an_inconclusive_ratio_is_told(module):
    result = module("overhead").ratio("x", [[1.0], [1.1], [1.3]], [[1.0]] * 3)
    assert result.inconclusive == "runs of one kind differ by 30.0%"
    assert result.details["ratio_of_fastest_steps"] == 1.0


def test_a_result_is_kept_with_its_machine(module, tmp_path):
    result = module("result")
    measured_on = {"processor": "A Processor", "num_cores": 2, "load_before": 3.5}
    path = result.keep(tmp_path / "new", result.Result("x", "an x", 3.0, 2.0, "s", {"n": 5}), measured_on)
    kept = json.loads(path.read_text())
    assert path.name == "x.json"
    assert (kept["value"], kept["goal"], kept["verdict"], kept["quiet"]) == (3.0, 2.0, "missed", False)
    assert kept["machine"] == measured_on
    assert result.is_quiet(measured_on | {"load_before": 0.9})


def test_requests_for_the_rules_are_the_same_every_time_and_of_every_kind(module):
    rules_speed = module("rules_speed")
    first, again = ([spec for spec, _ in itertools.islice(rules_speed.requests(), 300)] for _ in range(2))
    assert first == again
    assert {spec.recompute.granularity for spec in first} == {"none", "selective", "full"}
    assert {bool(spec.model.moe) for spec in first} == {True, False}
    assert len({spec.fingerprint for spec in first}) > 280


def test_processes_are_timed_and_failures_told(module):
    processes = module("processes")
    done = processes.timed([sys.executable, "-c", "print(sum(range(3_000_000)))"])
    assert done.stdout == "4499998500000\n"
    assert done.cpu_s > 0
    assert done.wall_s > 0
    with pytest.raises(processes.BenchmarkFailedError, match=r"exited with 3:\nfell over"):
        processes.timed(["sh", "-c", "echo fell over >&2; exit 3"])


def test_an_unknown_benchmark_is_a_wrong_request():
    environment = {**os.environ, "MBR_PERF_NO_SETUP": "1", "PYTHON": sys.executable}
    command = [ROOT / "scripts" / "bench", "startup_helm"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no such benchmark: startup_helm" in done.stderr


@pytest.mark.train
@pytest.mark.slow
def test_the_bare_loop_trains_what_the_harness_trains(tmp_path, module):
    from harness.launch.environment import this_host
    from harness.launch.rendezvous import free_port
    from harness.recipes.request import Request
    from harness.runner.request import RunRequest
    from harness.runner.understanding import understand

    asked = Request(model_recipe_name="llama3_8b", gpu="cpu", max_steps=2)
    understood = understand(RunRequest(asked=asked), this_host(), tmp_path)
    (tmp_path / "spec.json").write_text(understood.spec.model_dump_json())
    loop = ROOT / "scripts" / "bench.d" / "bare_loop.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1",
                f"--master-port={free_port()}", str(loop), str(tmp_path / "spec.json"), str(tmp_path)]  # fmt: skip
    module("processes").timed(torchrun, env={v.name: v.value for v in understood.plan.env})
    for rank in (0, 1):
        seconds = json.loads((tmp_path / f"rank_{rank}.json").read_text())
        assert len(seconds) == 2
        assert min(seconds) > 0
