"""A machine with a scripted GPU, on which runs take no time."""

import stat
import sys
import time
from pathlib import Path

import pytest

from harness.launch.environment import Host
from harness.runner.gpu_check.runs import Runs
from harness.runner.gpu_check.shapes import shapes
from harness.runner.gpu_check.target import find_target

FOLDER = Path(__file__).parent
RECIPES = Path(__file__).parents[3] / "scripts" / "gpu-check.d"


@pytest.fixture(scope="session")
def python(tmp_path_factory):
    """The interpreter of that machine."""
    path = tmp_path_factory.mktemp("python") / "python"
    path.write_text(f"#!{sys.executable}\n{(FOLDER / 'scripted_product.py').read_text()}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def machine(python, tmp_path):
    """Makes the runs of a scripted machine on which one thing goes wrong, or nothing."""

    def make(fault="", *, seconds=60.0, total_bytes=141 * 10**9, rehearse=False):
        shell = {"SCRIPTED_FAULT": fault, "SCRIPTED_TOTAL_BYTES": str(total_bytes)}
        target = find_target(Host(python=python, hostname="here", num_cores=8, shell=shell), rehearse=rehearse)
        return Runs(target, tmp_path / "runs", time.monotonic() + seconds)

    return make


@pytest.fixture
def shape():
    """A shape of scripts/gpu-check.d by name."""
    return {shape.name: shape for shape in shapes(RECIPES)}.__getitem__
