"""What can be held about the Dockerfile without docker: the files that it copies, and the shell script that it runs."""

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "scripts" / "Dockerfile").read_text()
STEPS = [line for line in re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.M).replace("\\\n", "").splitlines() if line]
COPIED = [word for step in STEPS if step.startswith("COPY ") for word in shlex.split(step)[1:-1]]
(SCRIPT,) = [step.removeprefix("RUN ") for step in STEPS if step.startswith("RUN ")]
BASE = "numpy==2.1.0\ntorch==2.10.0a0+b4e4ee81d3.nv25.12\ntransformer_engine==2.10.0+769ed778\n"
# Lists the packages of the base, and after the installation those of "$AFTER"; notes what it installs.
PYTHON = """#!/bin/sh
case "$*" in
  *list*) cat "$LISTED" ;;
  *install*) echo "$PIP_CONSTRAINT" "$@" >"$NOTED"; cp "$AFTER" "$LISTED" ;;
esac
"""


@pytest.fixture(name="build")
def _build(tmp_path):
    """Run the script of the Dockerfile with a pip that leaves ``after`` installed."""

    def run(after, **settings):
        for name, text in (("listed", BASE), ("after", after), ("python3", PYTHON)):
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
