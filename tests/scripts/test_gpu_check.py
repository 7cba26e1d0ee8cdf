"""scripts/gpu-check as a person runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def gpu_check(*arguments, **env):
    environment = {**os.environ, "MBR_PERF_NO_SETUP": "1", "PYTHON": sys.executable, **env}
    command = [ROOT / "scripts" / "gpu-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500, check=False)


def test_a_machine_without_gpu_exits_2_and_names_the_rehearsal(tmp_path):
    done = gpu_check("--time_limit", "1", "--out", tmp_path, LD_LIBRARY_PATH=str(tmp_path), CUDA_VISIBLE_DEVICES="")
    if "checking NVIDIA" in done.stderr:
        pytest.skip("this machine has a GPU")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--rehearse" in done.stderr


def test_an_unknown_shape_is_a_wrong_request():
    done = gpu_check("--rehearse", "--shapes", "dense,square")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no such shape square" in done.stderr


def test_help_says_what_the_exit_codes_mean():
    done = gpu_check("--help")
    assert done.returncode == 0
    assert "0 all passed, 2 no NVIDIA GPU, 3 something failed, 6 not all" in " ".join(done.stdout.split())


@pytest.mark.slow
@pytest.mark.train
def test_the_rehearsal_trains_and_survives_a_real_oom(tmp_path):
    done = gpu_check("--rehearse", "--shapes", "moe", "--recompute", "full:uniform:1", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = {case["check"]: case for case in json.loads((tmp_path / "summary.json").read_text())["cases"]}
    assert {name: case["verdict"] for name, case in cases.items()} == {
        "moe.none": "pass", "moe.full-uniform-1": "pass", "moe.oom": "pass", "moe.after_oom": "pass",
        "moe.sampler": "skipped",
    }  # fmt: skip
    full, none = cases["moe.full-uniform-1"], cases["moe.none"]
    assert 0 < full["peak_allocated_bytes"] < none["peak_allocated_bytes"]
    assert cases["moe.oom"]["checks"]["says_where"].startswith("pass: oom of rank 0 in build_model")
    assert "needs a GPU" in none["checks"]["memory_in_order"]
