"""scripts/check: which versions it tests with, and what it says where others are installed."""

import os
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Its lower bound exists for CUDA only.
NEWER_THAN_ITS_BOUND = "torch"


def pins(name):
    text = (SCRIPTS / name).read_text()
    return {canonicalize_name(line.split("==")[0]): line.split("==")[1] for line in text.splitlines() if "==" in line}


def asked_for(*extras):
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras)]
    return [Requirement(line) for line in chain(*lists) if not line.startswith("mbr-perf")]


def run(*words, **env):
    given = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **env}
    return subprocess.run(words, cwd=ROOT, env=given, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("user", "code", "message"),
    [
        (0, 1, "no mirror\ncould not install gcc libc6-dev, which tests need"),
        (1000, 2, "gcc libc6-dev "),
    ],
)
def test_what_tests_need_and_ci_may_install_is_never_left_out(tmp_path, user, code, message):
    """On a machine without C compiler, mirror and `sudo`, where Slurm may be missing as well."""
    scripted = {"id": f"echo {user}", "apt-get": "echo no mirror; exit 100"}
    for name, does in scripted.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o700)
    for name in ("bash", "dirname", "env", "mktemp", "rm", "tail", "true"):
        (tmp_path / name).symlink_to(shutil.which(name))
    done = run(shutil.which("bash"), ".ci/run", PATH=str(tmp_path), MBR_PERF_NO_SETUP="1", PYTHON=sys.executable)
    assert done.returncode == code
    assert message in done.stderr.replace(" slurm-wlm slurm-client", "").replace(" munge", "")


@pytest.mark.parametrize("needed", asked_for("train"), ids=str)
def test_the_oldest_versions_tested_are_the_lower_bounds(needed):
    bounds = [Version(part.version) for part in needed.specifier if part.operator == ">="]
    pinned = Version(pins("constraints-min.txt")[canonicalize_name(needed.name)])
    assert len(bounds) == 1
    assert pinned > bounds[0] if needed.name == NEWER_THAN_ITS_BOUND else pinned == bounds[0]


@pytest.mark.parametrize(
    "name", ["constraints.txt", "constraints-min.txt", "constraints-mcore019.txt", "constraints-torch26.txt"]
)
def test_what_is_asked_for_is_pinned_within_its_range(name):
    wanted = {canonicalize_name(needed.name): needed.specifier for needed in asked_for("train", "dev")}
    pinned = pins(name)
    assert {package for package, allowed in wanted.items() if pinned.get(package, "none") not in allowed} == set()


@pytest.mark.parametrize(
    ("environments", "differing", "package", "release"),
    [
        (("constraints.txt", "constraints-mcore019.txt"), {"megatron-core"}, "megatron-core", "~=0.19.0"),
        (("constraints-min.txt", "constraints-torch26.txt"), {"torch", "sympy", "megatron-core"}, "torch", "==2.6"),
    ],
)
def test_tested_versions_differ_between_environments_only_where_they_must(environments, differing, package, release):
    usual, other = map(pins, environments)
    assert {name for name in usual.keys() | other.keys() if usual.get(name) != other.get(name)} == differing
    assert Version(other[package]) in Requirement(f"{package}{release}").specifier


def test_another_version_than_the_tested_one_is_named(tmp_path):
    file = tmp_path / "constraints.txt"
    file.write_text(f"# tested\npytest==0.1\nno-such-package==1\npluggy=={version('pluggy')}\n")
    done = run(sys.executable, "scripts/check.d/installed.py", str(file))
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == [f"  pytest {version('pytest')}, tested: 0.1"]


@pytest.fixture(name="check")
def _check(tmp_path):
    """Run scripts/check over programs that only note how they are called; those in ``fails`` exit with that code."""

    def run_check(*words, **fails):
        for name in ("python", "ruff", "lint-imports", "mypy"):
            called = f"{name}*) exit {fails.get(name, 0)} ;;" if name != "python" else ""
            tests = f"*pytest*) exit {fails.get('pytest', 0)} ;;"
            path = tmp_path / name
            path.write_text(
                f'#!/bin/sh\necho "${{0##*/}} $*" >>{tmp_path}/calls\ncase "${{0##*/}} $*" in {called} {tests} esac\n'
            )
            path.chmod(0o700)
        own = {"MBR_PERF_NO_SETUP": "1", "PYTHON": str(tmp_path / "python"), "TMPDIR": str(tmp_path)}
        return run("scripts/check", *words, **own).returncode, (tmp_path / "calls").read_text().splitlines()

    return run_check


@pytest.mark.parametrize(
    ("words", "of_pytest"),
    [((), " -n 3"), (("-k", "gate"), " -n 3 -k gate"), (("--fast",), " -m not train and not slow")],
)
def test_everything_is_checked_and_fast_leaves_only_tests_out(check, words, of_pytest):
    code, calls = check(*words)
    assert code == 0
    assert f"python -m pytest -n 2 --dist loadfile --no-loadscope-reorder{of_pytest}" in calls
    num_programs = len(list(SCRIPTS.glob("*.d")))
    assert sum(call.startswith("mypy") for call in calls) == 2 + num_programs
    assert {"ruff format --check --quiet .", "ruff check --quiet .", "lint-imports --no-cache"} <= set(calls)


@pytest.mark.parametrize(
    ("fails", "code"),
    [({"mypy": 1}, 1), ({"pytest": 3}, 3), ({"pytest": 3, "mypy": 1}, 3), ({"lint-imports": 1}, 1), ({"ruff": 1}, 1)],
)
def test_whatever_fails_fails_the_check(check, fails, code):
    assert check("--fast", **fails)[0] == code


def test_an_environment_of_ones_own_with_other_versions_is_refused():
    own = {"MBR_PERF_NO_SETUP": "1", "PYTHON": sys.executable, "PATH": os.environ["PATH"]}
    other = ("--min",) if version("megatron-core").startswith("0.19") else ("--mcore", "0.19")
    done = run("scripts/check", *other, "--version", **own)
    assert done.returncode == 2
    assert f"megatron-core {version('megatron-core')}, tested: " in done.stderr
