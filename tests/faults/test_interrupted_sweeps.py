"""A sweep that a signal ends is resumed to the table of one that nobody disturbed."""

import json
import signal

import pytest

from harness.launch.processes import is_alive
from harness.records.sweep import run_dir_of
from tests.faults.at_work import started
from tests.faults.scenes import Played


@pytest.fixture(name="scene", scope="module")
def _scene(tmp_path_factory):
    return Played(tmp_path_factory.mktemp("scene"), repeats=1, rates="2.0e-4")


def table(out):
    """The answer without what differs between any two sweeps."""
    differs = ("sweep_id", "sweep_dir", "started_at", "command", "report")
    return {key: value for key, value in json.loads(out).items() if key not in differs}


@pytest.fixture(name="unbroken", scope="module")
def _unbroken(scene):
    _, command = scene.begun()
    with started(command, scene.environment) as running:
        return running.ended()


@pytest.mark.slow
@pytest.mark.parametrize(  # Ctrl-C of a sweep that trains: cli/test_sweep_real.py
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.long), (signal.SIGTERM, 143)]
)
def test_an_interrupted_sweep_keeps_its_first_run_and_is_resumed_to_an_equal_table(scene, unbroken, number, code):
    scene.stage.let(wait="/nowhere", where="cells/001/0")
    sweep_dir, command = scene.begun()
    first, report = run_dir_of(sweep_dir, 0, 0) / "record.json", sweep_dir / "report"
    report.mkdir()
    for name in ("report.html", "report.md", "report.csv", "mine.svg"):
        (report / name).write_text("of an earlier sitting")
    with started(command, scene.environment) as running:
        there = running.victims(until=run_dir_of(sweep_dir, 1, 0).is_dir, rank=2, sampler=1)
        running.process.send_signal(number)
        ended = running.ended()
    assert ended[0] == code, ended[2]
    assert f"--resume {sweep_dir}" in ended[2]
    assert {path.name for path in report.iterdir()} == {
        "report.html", "report.md", "report.csv", "report.json", "mine.svg", "memory_throughput.svg", "rank_memory.svg",
        "timeline.svg",
    }  # fmt: skip
    assert not [path for path in report.glob("report.*") if "of an earlier sitting" in path.read_text()]
    assert not [process for kind in there.values() for process in kind if is_alive(process)]
    before = first.read_bytes()
    scene.stage.let()
    with started(scene.resumed(sweep_dir), scene.environment) as running:
        resumed = running.ended()
    assert (resumed[0], table(resumed[1])) == (unbroken[0], table(unbroken[1])) == (0, table(unbroken[1]))
    assert first.read_bytes() == before
    assert (sweep_dir / "cells" / "001" / "0.incomplete-1").is_dir()
