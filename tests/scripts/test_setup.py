"""The environment is set up once, and what can be held about the Dockerfile without docker."""

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

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


DOCKERFILE = (ROOT / "scripts" / "Dockerfile").read_text()
STEPS = [line for line in re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.M).replace("\\\n", "").splitlines() if line]
COPIED = [word for step in STEPS if step.startswith("COPY ") for word in shlex.split(step)[1:-1]]
(SCRIPT,) = [step.removeprefix("RUN ") for step in STEPS if step.startswith("RUN ")]
BASE = "numpy==2.1.0\ntorch==2.10.0a0+b4e4ee81d3.nv25.12\ntransformer_engine==2.10.0+769ed778\n"
# Lists the packages of the base, and after the installation those of "$AFTER"; notes what it installs.
PIP = """#!/bin/sh
case "$*" in
  *list*) cat "$LISTED" ;;
  *install*) echo "$PIP_CONSTRAINT" "$@" >"$NOTED"; cp "$AFTER" "$LISTED" ;;
esac
"""


@pytest.fixture(name="build")
def _build(tmp_path):
    """Run the script of the Dockerfile with a pip that leaves ``after`` installed."""

    def run(after, **settings):
        for name, text in (("listed", BASE), ("after", after), ("python3", PIP)):
            (tmp_path / name).write_text(text)
        (tmp_path / "python3").chmod(0o755)
        settings |= {"PATH": f"{tmp_path}:/usr/bin:/bin", "NOTED": str(tmp_path / "noted"),
                    "LISTED": str(tmp_path / "listed"), "AFTER": str(tmp_path / "after")}  # fmt: skip
        script = SCRIPT.replace("/opt/", f"{tmp_path}/").replace("/tmp/before", f"{tmp_path}/before")
        done = subprocess.run(
            ["/bin/sh", "-c", script], cwd=ROOT, env=settings, capture_output=True, text=True, check=False
        )
        return done, (tmp_path / "noted").read_text().split()

    return run


def test_it_copies_what_the_wheel_is_made_of_and_docker_is_sent_no_more():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", project["project"]["readme"], "LICENSE", *wheel["packages"], *wheel["force-include"]}
    assert set(COPIED) == needed | {"scripts/constraints.txt", "scripts/constraints-mcore019.txt"}
    assert all((ROOT / name).exists() for name in COPIED)
    first, *admitted = (ROOT / "scripts" / "Dockerfile.dockerignore").read_text().split()
    assert first == "*"
    assert {line.removeprefix("!") for line in admitted if line.startswith("!")} == set(COPIED)


@pytest.mark.parametrize(
    ("settings", "versions", "more"),
    [({}, "constraints.txt", []), ({"BRIDGE": "0.6.2"}, "constraints-mcore019.txt", ["megatron-bridge==0.6.2"])],
)
def test_it_adds_the_tested_packages_under_the_constraints_of_the_base(build, settings, versions, more):
    (pin,) = re.findall(r"^megatron-core==.*$", (ROOT / "scripts" / versions).read_text(), re.M)

    done, (constraint, *pip) = build(BASE + pin + "\n", **settings)

    assert (done.returncode, done.stderr) == (0, "")
    assert Path(constraint).read_text() == BASE
    assert pip == ["-m", "pip", "install", "--no-cache-dir", pin, *more, ".[train]"]


@pytest.mark.parametrize("replaced", [("2.10.0a0+b4e4ee81d3.nv25.12", "2.10.0"), ("2.10.0+769ed778", "2.11.0")])
def test_the_build_stops_where_torch_or_transformer_engine_is_replaced(build, replaced):
    assert build(BASE.replace(*replaced))[0].returncode != 0
