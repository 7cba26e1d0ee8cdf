"""`mbr-perf doctor` with a scripted driver: every line is ok or has a remedy, and sets the exit code."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def doctor(library, tmp_path):
    """Run the command where NVML plays the given state lines; no lines: the driver is not loaded."""

    def run(*state, results=None, as_json=True):
        script = tmp_path / "state"
        if state:
            script.write_text("\n".join(state) + "\n")
        environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "FAKE_NVML_STATE": str(script)}
        options = ["--results_dir", str(results or tmp_path / "results"), *(["--json"] if as_json else [])]
        command = [sys.executable, "-m", "harness.app", "doctor", *options]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    return run


def by_name(done):
    return {line["name"]: line for line in json.loads(done.stdout)["lines"]}


@pytest.mark.slow
def test_a_torch_that_cannot_use_the_gpus_is_a_problem_and_exits_2(doctor):
    done = doctor("driver 570.1", "gpu 0 uuid=GPU-a")
    assert (by_name(done)["imports"]["state"], done.returncode) == ("problem", 2)


@pytest.mark.slow
def test_a_lost_gpu_is_a_problem(doctor):
    done = doctor("gpu 0 uuid=GPU-a", "gpu 1 uuid=GPU-b", "err nvmlDeviceGetUUID 15 -1 1")
    assert by_name(done)["GPU 1"]["found"] == "GPU is lost (NVML 15)"
    assert (by_name(done)["GPU 1"]["state"], done.returncode) == ("problem", 2)


def test_a_driver_that_is_not_loaded_is_a_warning_and_exits_6(doctor):
    done = doctor()
    assert by_name(done)["GPU"]["found"] == "none found (NVML failed: Driver Not Loaded (NVML 9))"
    assert (by_name(done)["GPU"]["state"], done.returncode) == ("warning", 6)


def test_in_text_a_remedy_follows_every_line_that_is_not_ok(doctor, tmp_path):
    (tmp_path / "file").write_text("")
    lines = doctor(results=tmp_path / "file", as_json=False).stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("problem  results folder: "))
    assert lines[at + 1].endswith(" --results_dir")
    at = next(i for i, line in enumerate(lines) if line.startswith("warning  GPU: none found ("))
    assert " nvidia-smi " in lines[at + 1]
    assert any(line.startswith("ok       megatron-core: ") for line in lines)
