"""Other launches on this machine: found while they measure, and only then."""

import subprocess
import sys

import pytest

from harness.launch.processes import claim
from harness.measure.launched import others_at_work

CLAIM = "import sys; from pathlib import Path; from harness.launch.processes import claim\n" \
        "for folder in sys.argv[1:]: claim(Path(folder))\n" \
        "print('claimed', flush=True); sys.stdin.read()"  # fmt: skip


@pytest.fixture
def claimed_elsewhere():
    """Folders that another process fills, until the test ends."""
    started = []

    def begin(*folders):
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-c", CLAIM, *map(str, folders)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == "claimed\n"
        return process

    yield begin
    for process in started:
        process.communicate()


@pytest.mark.parametrize("inner", ["nights/n1/cases/dense/0", "sweeps/n1/cells/000/0", "runs/n1"])
def test_what_measures_here_is_named_until_it_is_done(tmp_path, claimed_elsewhere, inner):
    run = tmp_path / inner
    claimed_elsewhere(tmp_path / inner.split("/")[0] / "n1", run)
    lines = ("shared machine: another mbr-perf was at work here: n1",)
    assert others_at_work(tmp_path / "runs" / "ours") == lines
    (run / "record.json").touch()
    assert others_at_work(tmp_path / "runs" / "ours") == ()


def test_what_a_run_is_a_part_of_is_no_other(tmp_path, claimed_elsewhere):
    night = tmp_path / "nights" / "n1"
    claimed_elsewhere(night, night / "cases" / "dense" / "0")
    assert others_at_work(night / "cases" / "other" / "0") == ()


def test_this_process_and_those_that_are_gone_are_no_others(tmp_path, claimed_elsewhere):
    run = tmp_path / "runs" / "r1"
    claimed_elsewhere(run).communicate()
    assert others_at_work(tmp_path / "runs" / "ours") == ()
    claim(run)
    assert others_at_work(tmp_path / "runs" / "ours") == ()
