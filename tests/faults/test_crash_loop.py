"""Whatever process of a sweep is killed at whatever moment, the sweep is resumed to its end and nothing finished is lost."""

import json
import subprocess
import sys

import pytest

from tests.faults.stage import ROOT


def killed(scene, kills, seconds, *options):
    command = [sys.executable, "-m", "tests.faults.crash_loop", scene, "--kills", str(kills), *map(str, options)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.long
def test_five_kills():
    assert killed("played", 5, 600, "--repeats", 1, "--seed", 5)["kills"] == 5


@pytest.mark.long
def test_two_hundred_kills_some_of_them_in_sweeps_that_train(tmp_path):
    figures = killed("both", 200, 7200, "--out", tmp_path / "figures.json")
    assert figures["kills"] == 200
    assert set(figures["kills_by_process"]) == {"harness", "agent", "rank", "sampler", "warm parent"}
