"""A machine with a scripted GPU, on which runs take no time."""

import stat
import sys
import time
from pathlib import Path

import pytest

from harness.launch.environment import Host
from harness.runner.gpu_check.runs import LEAST_S, Runs
from harness.runner.gpu_check.shapes import shapes
from harness.runner.gpu_check.target import find_target

FOLDER = Path(__file__).parent
RECIPES = Path(__file__).parents[3] / "scripts" / "gpu-check.d"


GPU = '{"driver": "580.1", "gpus": [{"index": 0, "name": "NVIDIA H200", "uuid": "GPU-1", "total_bytes": %s}]}'


@pytest.fixture(scope="session")
def python(tmp_path_factory):
    """The interpreter of that machine: lists a GPU when NVML is asked for, traces, and plays every run and program."""
    path = tmp_path_factory.mktemp("python") / "python"
    lines = (
        "#!/bin/sh",
        '[ "$2" = harness.engine.nvml ] && exec echo "$SCRIPTED_GPU"',
        f'[ "$2" = harness.engine.trace ] && exec {sys.executable} "$@"',
        f'case "$1" in *.py) exec {sys.executable} {FOLDER}/scripted_program.py "$@";; esac',
        f'exec {sys.executable} {FOLDER}/scripted_product.py "$@"',
    )
    path.write_text("\n".join(lines) + "\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def machine(python, tmp_path):
    """Makes the runs of a scripted machine on which one thing goes wrong, or nothing."""

    def make(fault="", *, seconds=60.0, total_bytes=141 * 10**9, rehearse=False, kept=None, least_s=LEAST_S):
        shell = {"SCRIPTED_FAULT": fault, "SCRIPTED_GPU": GPU % total_bytes, "PYTHONPATH": str(RECIPES.parents[1])}
        target = find_target(Host(python=python, hostname="here", num_cores=8, shell=shell), rehearse=rehearse)
        return Runs(target, tmp_path / "runs", time.monotonic() + seconds, RECIPES, kept, least_s)

    return make


@pytest.fixture
def shape():
    """A shape of scripts/gpu-check.d by name."""
    return {shape.name: shape for shape in shapes(RECIPES)}.__getitem__
