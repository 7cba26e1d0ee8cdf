"""Heartbeat files become progress, and silence becomes a verdict."""

import json

import pytest

from harness.launch.heartbeats import Heartbeats


class Ranks:
    """The heartbeat files of a run folder, written by hand."""

    def __init__(self, folder):
        (folder / "ranks").mkdir()
        self.folder = folder

    def raw(self, rank, text):
        with (self.folder / "ranks" / f"rank_{rank:03d}.progress.jsonl").open("a") as file:
            file.write(text)

    def write(self, rank, phase, time_s=0.0, **fields):
        self.raw(rank, json.dumps({"time_s": time_s, "phase": phase, **fields}) + "\n")

    def step(self, rank, step, seconds=1.0, time_s=0.0):
        self.write(rank, "step", time_s, step=step, seconds=seconds)


@pytest.fixture
def ranks(tmp_path):
    return Ranks(tmp_path)


def follow(ranks, count=2, num_steps=10):
    return Heartbeats(ranks.folder, range(count), num_steps, now=100.0)


def test_progress_is_that_of_the_slowest_rank(ranks):
    heartbeats = follow(ranks)
    ranks.step(0, 3, seconds=2.0)
    ranks.step(1, 2, seconds=4.0)
    assert heartbeats.read(101.0)
    progress = heartbeats.progress()
    assert (progress.step, progress.last_step_s, progress.eta_s) == (2, 4.0, 7 * 3.0)


def test_half_a_line_is_kept_until_the_rest_comes_and_no_heartbeat_is_a_sign_of_life_only(ranks):
    heartbeats = follow(ranks, count=1)
    line = json.dumps({"time_s": 1.0, "phase": "step", "step": 4, "seconds": 1.0})
    ranks.raw(0, line[:20])
    heartbeats.read(101.0)
    assert heartbeats.progress().step is None
    ranks.raw(0, line[20:] + "\n\x00garbage{\n")
    assert heartbeats.read(102.0)
    assert heartbeats.progress().step == 4


def test_silence_beyond_the_floor_is_a_hang_and_long_steps_earn_twenty_times_their_patience(ranks):
    heartbeats = follow(ranks, count=1)
    ranks.step(0, 0, seconds=0.1)
    heartbeats.read(101.0)
    silence = heartbeats.silence(111.5, floor_s=10.0)
    assert (silence.status, silence.rank) == ("hang", 0)
    assert "for 10.5 s (limit 10.0 s) in phase step after step 0" in silence.reason
    ranks.step(0, 1, seconds=6.0)
    heartbeats.read(101.0)
    assert heartbeats.silence(160.0, floor_s=10.0) is None
    assert heartbeats.silence(222.0, floor_s=10.0) is not None


@pytest.mark.parametrize("phases", [(), ("start",), ("start", "import")])
def test_importing_may_take_two_minutes(ranks, phases):
    heartbeats = follow(ranks, count=1)
    for phase in phases:
        ranks.write(0, phase)
    heartbeats.read(100.0)
    assert heartbeats.silence(219.0, floor_s=10.0) is None
    assert heartbeats.silence(221.0, floor_s=10.0) is not None


@pytest.mark.parametrize("reached", [((5, 0.0), (4, 0.0), (5, 0.0)), ((5, 7.2), (5, 7.1))])
def test_the_rank_that_got_least_far_or_fell_silent_first_is_named(ranks, reached):
    heartbeats = follow(ranks, count=len(reached))
    for rank, (step, time_s) in enumerate(reached):
        ranks.step(rank, step, time_s=time_s)
    heartbeats.read(101.0)
    assert heartbeats.silence(200.0, floor_s=10.0).rank == 1


def test_a_finished_rank_may_wait_for_the_others_but_not_for_ever(ranks):
    heartbeats = follow(ranks)
    ranks.write(0, "finish")
    ranks.step(1, 5, seconds=0.1)
    heartbeats.read(101.0)
    ranks.step(1, 6, seconds=0.1)
    heartbeats.read(120.0)
    assert heartbeats.silence(125.0, floor_s=10.0) is None
    ranks.write(1, "finish")
    heartbeats.read(126.0)
    assert heartbeats.silence(137.0, floor_s=10.0) is not None  # all finished, and they do not end
