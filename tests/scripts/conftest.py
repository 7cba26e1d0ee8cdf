"""A machine whose NVML lists a GPU; the programs of scripts/."""

import importlib
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def module(monkeypatch, request):
    """A module by name, of the folders of scripts/ that a file of tests has in FOLDERS; they are no packages."""
    for folder in request.module.FOLDERS:
        monkeypatch.syspath_prepend(SCRIPTS / folder)
    return importlib.import_module


@pytest.fixture(scope="session")
def scripted_gpu(library):
    """The environment of a machine whose NVML lists an H200, scripted; torch finds no GPU there."""
    (library / "state").write_text(
        "driver 580.1\ngpu 0 uuid=GPU-1 name=NVIDIA_H200 total=150754820096 used=1073741824\nproc 0 pid=4711 used=1048576\n"
    )
    return {"LD_LIBRARY_PATH": str(library), "FAKE_NVML_STATE": str(library / "state"), "CUDA_VISIBLE_DEVICES": ""}
