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


def test_requests_for_the_rules_are_the_same_every_time_and_of_every_kind(module):
    rules_speed = module("rules_speed")
    first, again = ([spec for spec, _ in itertools.islice(rules_speed.requests(), 300)] for _ in range(2))
    assert first == again
    assert {spec.recompute.granularity for spec in first} == {"none", "selective", "full"}
    assert {bool(spec.model.moe) for spec in first} == {True, False}
    assert len({spec.fingerprint for spec in first}) > 280


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


@pytest.mark.train
@pytest.mark.slow
@pytest.mark.long
def test_a_sampler_at_work_is_stopped_for_every_other_step(tmp_path, module):
    sampler, paired = module("sampler"), module("paired")
    understood = paired.understood_here(tmp_path)
    with sampler.sampling(tmp_path, {**os.environ, **sampler.scripted_driver(tmp_path)}) as process:
        paired.train_pairs(understood, tmp_path, 3, str(process.pid))
        used = sampler.cpu_seconds(process.pid)
    for rank in (0, 1):
        seconds = json.loads((tmp_path / f"seconds_{rank}.json").read_text())
        assert {kind: len(steps) for kind, steps in seconds.items()} == {"sampled": 3, "unsampled": 3}
    seen = json.loads((tmp_path / "nvml.json").read_text())["devices"]
    assert len(seen) == sampler.NUM_GPUS
    assert min(device["num_samples"] for device in seen) > 3
    assert used > 0


def test_a_goal_that_is_met_although_other_work_ran_is_met_unless_noise_lowers_the_value_too(module):
    result = module("result").Result
    assert result("x", "an x", 1.0, 2.0, "s", {}, "busy").verdict == "met"
    assert result("x", "an x", 1.0, 2.0, "ratio", {}, "busy", noise_lowers=True).verdict == "inconclusive"


def test_what_a_run_costs_later_is_held_against_what_it_cost_before(module):
    long_run, look = module("long_run"), module("watching").Look

    def looks(leak_bytes=0, cpu_s=0.06, slower_s=0.0, runs=101):
        cpu = [cpu_s * n + slower_s * n * n for n in range(runs)]
        return [look(0.1 * n, cpu[n], 50 * 2**20 + leak_bytes * n, 0) for n in range(runs)]

    assert long_run.growth(looks()).ratios == pytest.approx({"harness_cpu": 1.0, "harness_mib": 1.0})
    assert long_run.growth(looks(leak_bytes=2**20)).ratios["harness_mib"] > 2
    assert long_run.growth(looks(slower_s=0.001)).ratios["harness_cpu"] > 3
    assert long_run.among_records(looks(), looks(cpu_s=0.09)).ratios["harness_cpu"] == pytest.approx(1.5)
    found = {"a": long_run.growth(looks()), "b": long_run.growth(looks(leak_bytes=2**20))}
    assert long_run.summary(found, 5).verdict == "missed"
    assert long_run.summary(found, 5).details["worst"] == "b harness_mib"
    assert long_run.summary({"a": long_run.growth(looks())}, 5).verdict == "met"


def test_of_less_than_a_hundred_clock_ticks_no_ratio_is_taken(module):
    long_run, look = module("long_run"), module("watching").Look
    looks = [look(0.1 * n, 0.02 * n, 50 * 2**20, 0) for n in range(101)]
    few = {"a": long_run.growth(looks), "b": long_run.among_records(looks, [look(n, 0.0, 1, 0) for n in range(9)])}
    assert few["a"].doubts == {"harness_cpu": "40 clock ticks, 100 are needed"}
    assert few["a"].ratios == {"harness_mib": 1.0}
    found = long_run.summary(few, 5)
    assert (found.verdict, found.details["worst"]) == ("inconclusive", "a harness_mib")
    assert "b harness_cpu: 0 clock ticks" in found.inconclusive


def test_pairs_are_of_the_slowest_rank_and_none_may_be_missing(module, tmp_path):
    paired = module("paired")
    for rank, seconds in enumerate((0.1, 0.2)):
        steps = {"on": [seconds] * 7, "off": [0.15] * 7}
        (tmp_path / f"seconds_{rank}.json").write_text(json.dumps(steps))
    assert paired.pairs_of(tmp_path, "on", "off", 7) == [(0.2, 0.15)] * (7 - paired.WARM_UP)
    with pytest.raises(paired.BenchmarkFailedError, match="not trained every step"):
        paired.pairs_of(tmp_path, "on", "off", 8)
