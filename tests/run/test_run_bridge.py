"""`mbr-perf run` and `sweep` with --engine bridge as typed: a scripted Megatron-Bridge, real torchrun and megatron-core."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harness.records.store import read_run
from tests.scripted_bridge import PACKAGE, container

pytestmark = [pytest.mark.train, pytest.mark.slow]
ROOT = Path(__file__).parents[2]


def mbr_perf(folder, command, *words):
    """Run the command on the container in ``folder``; two ranks, two pipeline stages."""
    path = folder / "job.yaml"
    if not path.exists():
        path.write_text(yaml.safe_dump(container()))
    typed = [sys.executable, "-m", "harness.app", command, "--engine", "bridge", "--bridge_config", str(path), "-g", "cpu",
             "-ng", "2", "-pp", "2", "--results_dir", str(folder / "results"), *words]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": f"{PACKAGE}:{ROOT}"}
    return subprocess.run(typed, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(name="ran", scope="module")
def _ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ran")
    done = mbr_perf(folder, "run", "-ms", "8", "--recompute", "full:uniform:1", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_run_by_bridge_is_measured_and_judged_as_any_other(ran):
    assert (ran["outcome"], ran["exit_code"], ran["suspect"]) == ("pass", 0, [])
    assert ran["metrics"]["step_time_s"]["n"] == 3
    assert ran["metrics"]["tflops_per_gpu"]["median"] > 0
    assert ran["metrics"]["peak_allocated_bytes"]["value"] > 0
    assert ran["effective"]["full_layers"] == 2
    assert [rank["recompute"]["full_layers"] for rank in ran["ranks"]] == [1, 1]


def test_the_record_names_the_engine_and_keeps_its_container(ran):
    engine, run_dir = ran["spec"]["engine"], Path(ran["run_dir"])
    assert (engine["name"], engine["version"]) == ("bridge", "0.3.1")
    assert engine["overrides"]["model.pipeline_model_parallel_size"] == 2
    assert yaml.safe_load((run_dir / "bridge_config.yaml").read_text()) == container()
    record = read_run(run_dir)
    assert record.fingerprint == record.spec.fingerprint == ran["fingerprint"]


@pytest.mark.long
def test_a_sweep_compares_settings_that_bridge_trains(tmp_path):
    done = mbr_perf(tmp_path, "sweep", "--over", "recompute=none; full:uniform:1", "-ms", "8", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert [(cell["recompute"], cell["status"]) for cell in answer["cells"]] == [
        ("none", "ok"),
        ("full:uniform:1", "ok"),
    ]
    records = [read_run(path.parent) for path in sorted(tmp_path.glob("results/sweeps/*/cells/*/*/record.json"))]
    assert {record.spec.engine.version for record in records} == {"0.3.1"}


def test_a_recipe_function_makes_the_container(tmp_path):
    words = ("-g", "cpu", "-ng", "1", "-ms", "8", "--results_dir", str(tmp_path / "results"), "--dryrun", "--json")
    env = {**os.environ, "PYTHONPATH": f"{PACKAGE}:{ROOT}", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    typed = [sys.executable, "-m", "harness.app", "run", "--engine", "bridge", "--bridge_recipe"]
    done = subprocess.run(
        [*typed, "tiny_gpt_config", *words], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    spec = json.loads(done.stdout)["spec"]
    assert (spec["recipe"], spec["model"]["num_layers"]) == ("tiny_gpt_config", 2)
    assert spec["engine"]["config"] == str(
        tmp_path / "cache" / "mbr-perf" / "bridge" / "0.3.1-1gpu" / "tiny_gpt_config.yaml"
    )
    wrong = subprocess.run(
        [*typed, "tiny_gtp_config", *words], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert wrong.returncode == 2
    assert " tiny_gtp_config; " in wrong.stderr and "tiny_gpt_config" in wrong.stderr
    hooked = subprocess.run(
        [*typed, "hooked_config", *words], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert hooked.returncode == 2
    assert "hooked_config registers a pre_wrap_hook" in hooked.stderr


def test_the_cases_of_a_night_are_the_recipe_functions_that_their_points_are_from(tmp_path):
    recipe = yaml.safe_load((ROOT / "recipes" / "llama" / "llama3_8b.yaml").read_text())
    of_bridge, own = ({**recipe["points"][0], "source": source} for source in ("Bridge, tiny_gpt_config", "none"))
    for name, point in (("tiny", of_bridge), ("own", own)):
        path = tmp_path / "recipes" / "llama" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump({**recipe, "name": name, "points": [point | {"num_gpus": 1}]}))
    cases = [{"request": {"model_recipe_name": name, "compute_dtype": "fp32"}} for name in ("tiny", "own")]
    suite = tmp_path / "suite.yaml"
    suite.write_text(yaml.safe_dump({"title": "t", "defaults": {"request": {"gpu": "cpu"}}, "cases": cases}))
    typed = [sys.executable, "-m", "harness.app", "nightly", str(suite), "--engine", "bridge", "--dryrun", "--json",
             "--recipes_dir", str(tmp_path / "recipes")]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": f"{PACKAGE}:{ROOT}", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(typed, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    planned, refused = json.loads(done.stdout)["cases"]
    assert (planned["slug"], planned["refused"]) == ("tiny_gpt_config.pretrain.fp32.1gpu.none.bridge", None)
    assert "own.yaml" in refused["refused"]
