"""Whatever process of a sweep is killed at whatever moment, the sweep is resumed to its end and nothing finished is lost."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.faults.kept import Kept
from tests.faults.stage import ROOT


@pytest.fixture(name="kept")
def _kept(tmp_path):
    """A sweep of three finished runs, looked at once."""
    kept = Kept(shutil.copytree(ROOT / "tests" / "data" / "sweeps" / "cpu_oom", tmp_path / "sweep"))
    kept.look()
    return kept


def record_of(kept):
    return kept.sweep_dir / "cells" / "001" / "0" / "record.json"


@pytest.mark.parametrize(
    "harm", [lambda path: path.unlink(), lambda path: path.write_text(path.read_text() + " ")], ids=["gone", "changed"]
)
def test_a_finished_run_that_is_not_what_it_was_is_seen(kept, harm):
    harm(record_of(kept))
    with pytest.raises(AssertionError, match="was finished and is not what it was"):
        kept.look()


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


@pytest.mark.slow
def test_the_script_takes_a_scene_as_its_usage_says():
    script = (ROOT / "scripts" / "crash-loop", "played", "--kills", "4", "--help")
    own = {**os.environ, "MBR_PERF_NO_SETUP": "1", "PYTHON": sys.executable}
    none = subprocess.run((*script[:2], "--minutes", "0"), capture_output=True, text=True, env=own, check=False)
    usage = subprocess.run(script, capture_output=True, text=True, env=own, check=True).stdout
    assert (none.returncode, "required: --kills" in none.stderr) == (2, True)
    assert "results/faults/crash_loop.json" in usage
