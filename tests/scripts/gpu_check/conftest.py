"""A machine with a scripted GPU, on which runs take no time."""

import json
import stat
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness.launch.environment import Host

FOLDER = Path(__file__).parent
PROGRAMS = FOLDER.parents[2] / "scripts" / "gpu-check.d"
sys.path.insert(0, str(PROGRAMS))  # it is no package: its modules import each other by name

from machine import find_target  # noqa: E402
from runs import LEAST_S, Runs  # noqa: E402
from shapes import shapes  # noqa: E402


@pytest.fixture(scope="session")
def python(tmp_path_factory):
    """The interpreter of that machine: lists a GPU when NVML is asked for, traces, and plays every run and program."""
    path = tmp_path_factory.mktemp("python") / "python"
    lines = (
        "#!/bin/sh",
        '[ "$2" = harness.engine.nvml_device ] && exec echo "$SCRIPTED_GPU"',
        f'case "$2" in harness.engine.*trace) exec {sys.executable} "$@";; esac',
        f'[ "$2" = harness.engine.rates ] && exec {sys.executable} {FOLDER}/scripted_program.py rates.py . "$3"',
        f'case "$1" in *.py) exec {sys.executable} {FOLDER}/scripted_program.py "$@";; esac',
        f'exec {sys.executable} {FOLDER}/scripted_product.py "$@"',
    )
    path.write_text("\n".join(lines) + "\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def machine(python, tmp_path):
    """Makes the runs of a scripted machine on which one thing goes wrong, or nothing."""

    def make(fault="", *, seconds=60.0, total_bytes=141 * 10**9, num_gpus=1, te=None, rehearse=False, kept=None,
             least_s=LEAST_S):  # fmt: skip
        gpu = {"name": "NVIDIA H200", "total_bytes": total_bytes}
        gpus = [gpu | {"index": i, "uuid": f"GPU-{i + 1}"} for i in range(num_gpus)]
        listed = json.dumps({"driver": "580.1", "gpus": gpus})
        shell = {"SCRIPTED_FAULT": fault, "SCRIPTED_GPU": listed, "PYTHONPATH": str(PROGRAMS.parents[1])}
        host = Host(python=python, hostname="here", num_cores=8, shell=shell)
        target = find_target(host, PROGRAMS, rehearse=rehearse)
        target = replace(target, software=target.software.model_copy(update={"transformer_engine": te}))
        return Runs(target, tmp_path / f"runs{fault}", time.monotonic() + seconds, PROGRAMS, kept, least_s)

    return make


@pytest.fixture
def shape():
    """A shape of scripts/gpu-check.d by name."""
    return {shape.name: shape for shape in shapes(PROGRAMS)}.__getitem__
