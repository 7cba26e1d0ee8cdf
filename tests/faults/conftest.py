"""A stage per module, and runs on it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.launch.processes import is_alive
from tests.commands import Answer
from tests.faults.at_work import PATIENCE_S, Run, started
from tests.faults.stage import ROOT, Stage
from tests.native_libraries import compiled


@pytest.fixture(name="stage", scope="module")
def _stage(tmp_path_factory):
    return Stage(tmp_path_factory.mktemp("stage") / "stage")


@pytest.fixture(name="started")
def _started(stage):
    """Starts a command of the stage; killed at the end whatever happened."""
    return lambda command, **variables: started(command, stage.environment | variables)


@pytest.fixture(name="run")
def _run(stage, started, tmp_path):
    """A running `mbr-perf run`, whose ranks behave as the arguments ask."""

    @contextmanager
    def start(*options, variables=None, **behaviour) -> Iterator[Run]:
        stage.let(**behaviour)
        with started(stage.run_command(tmp_path / "results", *options), **(variables or {})) as running:
            yield running

    return start


@pytest.fixture(name="only_run")
def _only_run(tmp_path) -> Callable[[], Path]:
    """The folder of the one run that was made."""

    def folder():
        (run_dir,) = (tmp_path / "results" / "runs").iterdir()
        return run_dir

    return folder


@pytest.fixture(name="shifted_clock")
def _shifted_clock(tmp_path):
    """A file that sets the clock back by an hour when it appears, and the variables for it."""
    library, file = compiled("shifted_clock.c", tmp_path / "shifted_clock.so", "-ldl"), tmp_path / "set_back"
    return file, {"LD_PRELOAD": str(library), "CLOCK_SET_BACK": str(file)}


@pytest.fixture(name="mbr_perf")
def _mbr_perf(started):
    """`mbr-perf` to its end in a process of its own."""

    def answer(*words):
        with started((sys.executable, "-m", "harness.app", *map(str, words))) as running:
            return Answer(*running.ended())

    return answer


@pytest.fixture(name="on_small_disk")
def _on_small_disk(stage, tmp_path):
    """Runs a command with ``folder`` on a file system of ``size``: exit code, answer, narration, and a copy of its files."""
    inside = ["unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",))]
    mountable = subprocess.run([*inside, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    if mountable.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {mountable.stderr.decode().strip()}")
    script = 'mount -t tmpfs -o size="$1" none "$2" && cp -r "$3/." "$2"; shift 3; "$@"; code=$?; rm -f "$filler"; cp -r "$small" "$left"; exit $code'

    def run(command, folder, size, filler, content=None):
        (content := content or tmp_path / "nothing").mkdir(exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        left = tmp_path / "left"
        words = [*inside, "sh", "-c", script, "sh", size, str(folder), str(content), *command]
        names = {"filler": str(filler), "small": str(folder), "left": str(left)}
        done = subprocess.run(words, cwd=ROOT, env=stage.environment | names, capture_output=True, text=True,
                              timeout=PATIENCE_S, check=False)  # fmt: skip
        return done.returncode, done.stdout, done.stderr, left

    return run


@pytest.fixture
def gone():
    """Whether all of these processes have ended, at once or soon."""

    def all_gone(*processes, within_s=20.0):
        deadline = time.monotonic() + within_s
        while any(is_alive(process) for process in processes):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    return all_gone
