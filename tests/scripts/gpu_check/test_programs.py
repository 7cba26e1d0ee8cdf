"""Programs of scripts/gpu-check.d on a machine without a GPU: they start, do what needs none, and refuse the rest in words."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ooms import WAYS

from harness.failures.classify import classify

ROOT = Path(__file__).parents[3]


def program(name, *arguments, **env):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", **env}
    command = [sys.executable, ROOT / "scripts" / "gpu-check.d" / name, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


@pytest.mark.train
def test_the_program_knows_the_ways_that_are_asked_of_it_and_the_text_of_host_memory_is_real(tmp_path):
    done = program("oom_class.py", tmp_path, "none_such")
    assert done.returncode == 2
    assert set(done.stderr.strip().rpartition("; of ")[2].split(", ")) == {way.name for way in WAYS}
    done = program("oom_class.py", tmp_path, "host_memory")
    assert done.returncode == 0, done.stderr
    assert classify(json.loads((tmp_path / "oom.json").read_text())["text"]).oom_class == "host_memory"


@pytest.mark.train
def test_a_way_that_needs_a_gpu_is_refused_in_words_and_nothing_is_written(tmp_path):
    done = program("oom_class.py", tmp_path, "capacity")
    assert done.returncode == 2
    assert "GPU" in done.stderr
    assert list(tmp_path.iterdir()) == []
