"""The environment is set up once, whoever asks first, and however many ask at once."""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]

# A Python whose environments have a pip that takes its time, and must not be at work twice.
PYTHON = """#!/bin/sh
case "$*" in
  *venv*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *pip*) mkdir "$ONE_PIP" || exit 1; sleep 0.3; echo "$*" >>"$INSTALLED"; rmdir "$ONE_PIP" ;;
esac
"""


def checkout(tmp_path):
    """What the script reads, and the variables under which it installs nothing real."""
    (tmp_path / "scripts").mkdir()
    for name in ("pyproject.toml", "scripts/setup", "scripts/constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return {"PATH": os.environ["PATH"], "PYTHON": str(python), "ONE_PIP": str(tmp_path / "pip"),
            "INSTALLED": str(tmp_path / "installed")}  # fmt: skip


def set_up(tmp_path, variables, extra):
    done = subprocess.run([tmp_path / "scripts" / "setup", extra], env=variables, capture_output=True, text=True,
                          timeout=60, check=False)  # fmt: skip
    return done.returncode, done.stdout.strip()


def installed(tmp_path):
    return [line.split()[-3] for line in (tmp_path / "installed").read_text().splitlines()]


def test_several_at_once_install_once(tmp_path):
    variables = checkout(tmp_path)
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda _: set_up(tmp_path, variables, "train"), range(4)))
    assert answers == [(0, f"{tmp_path}/.venv/bin/python")] * 4
    assert installed(tmp_path) == [".[train]"]


def test_what_developers_have_serves_to_train_and_not_the_other_way_round(tmp_path):
    variables = checkout(tmp_path)
    codes = [set_up(tmp_path, variables, extra)[0] for extra in ("train", "dev", "train")]
    assert (codes, installed(tmp_path)) == ([0, 0, 0], [".[train]", ".[dev]"])
    (tmp_path / ".venv" / ".mbr-perf-train").unlink()
    assert set_up(tmp_path, variables, "train")[0] == 0
    assert installed(tmp_path) == [".[train]", ".[dev]"]


def test_an_environment_of_other_extras_is_set_up_again(tmp_path):
    variables = checkout(tmp_path)
    assert set_up(tmp_path, variables, "dev")[0] == 0
    with (tmp_path / "pyproject.toml").open("a") as project:
        project.write("# changed\n")
    assert [set_up(tmp_path, variables, "dev")[0] for _ in range(2)] == [0, 0]
    assert installed(tmp_path) == [".[dev]"] * 2
