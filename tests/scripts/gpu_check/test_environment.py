"""Which Python environment gpu-check uses, and what its programs do on a machine without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ooms import WAYS

from harness.failures.classify import classify

ROOT = Path(__file__).parents[3]
PROGRAMS = ROOT / "scripts" / "gpu-check.d"
CHOOSE = (
    "import sys, environment as e; from pathlib import Path\n"
    "try: print(e.choose({shell}, Path({root!r}), rehearse={rehearse}, filesystem=Path({root!r})))\n"
    "except e.UnfitError as error: sys.stderr.write(str(error)); sys.exit(error.exit_code)"
)


@pytest.fixture
def torch_built_for(tmp_path):
    """A folder with a torch that says what it is built for; it can do nothing else."""

    def make(cuda):
        package = tmp_path / "site" / "torch"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise ImportError('only its version may be read')\n")
        (package / "version.py").write_text(f"__version__ = '2.9.0'\ncuda = {cuda!r}\n")
        return str(package.parent)

    return make


@pytest.fixture
def choice(tmp_path):
    """What :func:`environment.choose` answers in a fresh process, with a checkout whose set-up only says so."""

    def make(site, shell=None, *, rehearse=False, setup="echo /made/python"):
        scripts = tmp_path / "checkout" / "scripts"
        scripts.mkdir(parents=True)
        (scripts / "setup").write_text(f"#!/bin/sh\ntouch {tmp_path}/was-set-up\n{setup}\n")
        (scripts / "setup").chmod(0o755)
        (scripts.parent / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
        program = CHOOSE.format(shell=shell or {}, root=str(scripts.parent), rehearse=rehearse)
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (site, str(PROGRAMS))))}
        done = subprocess.run(
            [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=100, check=False
        )
        return done.returncode, done.stdout.strip(), (tmp_path / "was-set-up").exists()

    return make


@pytest.fixture
def empty(tmp_path):
    """An environment without packages, as a fresh machine has it."""
    folder = tmp_path / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=100)
    return folder / "bin" / "python"


def gpu_check(python, *arguments, **env):
    environment = {name: value for name, value in os.environ.items() if name != "MBR_PERF_NO_SETUP"}
    command = [ROOT / "scripts" / "gpu-check", *arguments]
    environment |= {"PYTHON": str(python), **env}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=False)


@pytest.mark.parametrize(
    ("cuda", "options", "python", "was_set_up"),
    [
        ("12.8", {}, sys.executable, False),
        (None, {}, "/made/python", True),  # that torch is left alone
        (None, {"rehearse": True}, sys.executable, False),
    ],
)
def test_an_environment_with_torch_for_cuda_is_used_and_another_is_set_up(
    choice, torch_built_for, cuda, options, python, was_set_up
):
    assert (choice(torch_built_for(cuda), **options)) == (0, python, was_set_up)


@pytest.mark.parametrize("shell", [{"container": "podman"}, {"NVIDIA_PYTORCH_VERSION": "25.09"}])
def test_beside_the_torch_of_a_container_nothing_is_installed(choice, torch_built_for, shell):
    assert choice(torch_built_for(None), shell) == (2, "", False)


def test_a_set_up_that_fails_ends_with_its_exit_code(choice, torch_built_for):
    assert choice(torch_built_for(None), setup="exit 3") == (3, "", True)


@pytest.mark.parametrize("cuda", ["13.0", None])
def test_missing_packages_are_one_remedy_and_no_traceback(empty, torch_built_for, cuda):
    env = {"MBR_PERF_NO_SETUP": "1"} if cuda is None else {}
    done = gpu_check(empty, PYTHONPATH=torch_built_for(cuda), **env)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "lacks typer, rich, pyyaml, pydantic, packaging, nvidia-ml-py, scipy, torch, megatron-core, numpy"
        in done.stderr
    )
    assert f"cd {ROOT} && {empty} -m pip install -e '.[train]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_and_wrong_usage_install_nothing(empty):
    done = gpu_check(empty, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "scripts/gpu-check [-h]" in done.stdout
    done = gpu_check(empty, "--no_such_option")
    assert (done.returncode, done.stdout) == (2, "")
    assert "installing" not in done.stderr


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
