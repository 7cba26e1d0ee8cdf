"""An ordinary error of the operating system ends a command with a documented code, a path and a reason."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.io_faults import REPLAY, ROOT, commands

RUN = ("run", "-mr", REPLAY / "replayed.yaml", "-g", "cpu", "--launcher", "replay", "--from", REPLAY / "ok")


def harness(*words, shell="", cwd=ROOT):
    """Run a command behind what the shell does with its streams or limits."""
    command = ["bash", "-c", f'exec "$0" -m harness.app "$@" {shell}', sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"})  # fmt: skip


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("command", sorted(commands(Path(), "")))
def test_every_error_at_every_call_is_told(command):
    done = subprocess.run([sys.executable, "-m", "tests.faults.io_faults", command], cwd=ROOT, capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


@pytest.mark.slow
def test_an_answer_that_stdout_cannot_take_is_told_and_a_verdict_keeps_its_code(tmp_path):
    asked = (*RUN, "--results_dir", tmp_path / "results")
    listed = harness("recipes", "list", shell="> /dev/full")
    assert (listed.returncode, listed.stderr.startswith("error: stdout: No space left on device")) == (3, True)
    assert harness(*asked, shell="> /dev/full").returncode == 3
    assert harness(*asked, "--require_golden", shell="> /dev/full").returncode == 6
    assert harness("plan", "nonsense", shell="> /dev/full").returncode == 2
    assert harness(*asked, shell="2> /dev/full").returncode == 0
    assert len(list((tmp_path / "results" / "runs").glob("*/record.json"))) == 3


@pytest.mark.slow
def test_a_deleted_working_folder_is_told(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    script = f'cd {folder} && rmdir {folder} && exec "$0" -m harness.app "$@"'
    done = subprocess.run(["bash", "-c", script, sys.executable, *map(str, RUN)], capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.returncode, "folder" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


@pytest.mark.slow
def test_a_limit_of_file_sizes_is_told_with_the_file(tmp_path):
    words = ["bash", "-c", 'ulimit -f 1; exec "$0" -m harness.app "$@"', sys.executable]
    asked = [*RUN, "--results_dir", tmp_path / "results"]
    done = subprocess.run([*words, *map(str, asked)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, "spec.json: File too large" in done.stderr, "Traceback" in done.stderr) == (3, True, False)
