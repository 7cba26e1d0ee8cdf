"""A crew polls its processes rarely; a signal is a value that nested blocks share."""

import os
import signal
import subprocess
import time

from harness.launch.crew import MAX_LOOKING, Crew, interruption


class Agent(subprocess.Popen[bytes]):
    """Counts the looks: each asks once whether it runs."""

    num_looks = 0

    def poll(self):
        self.num_looks += 1
        return super().poll()


def test_whoever_keeps_looking_looks_for_a_small_share_of_the_time():
    with Agent(("sleep", "60")) as agent:
        crew = Crew(agent)
        one_look_s = min(seconds(crew.look) for _ in range(5))
        agent.num_looks, began = 0, time.monotonic()
        while time.monotonic() < began + 0.5:
            crew.keep_looking()
        num_looks = agent.num_looks
        agent.kill()
    assert (
        1 <= num_looks <= 1 + 4 * MAX_LOOKING * 0.5 / one_look_s
    )  # four times as many where looks have become quicker


def seconds(action):
    began = time.monotonic()
    action()
    return time.monotonic() - began


def test_a_signal_that_came_just_before_an_inner_block_ends_that_block_too():
    with interruption() as outer:
        os.kill(os.getpid(), signal.SIGTERM)
        with interruption() as inner:
            assert inner.signal is signal.SIGTERM
        assert outer.signal is signal.SIGTERM


def test_a_later_block_knows_nothing_of_an_earlier_signal():
    with interruption():
        os.kill(os.getpid(), signal.SIGINT)
    with interruption() as later:
        assert later.signal is None


def test_a_signal_that_an_inner_block_did_not_heed_reaches_the_outer_one():
    with interruption() as outer:
        with interruption():
            os.kill(os.getpid(), signal.SIGINT)
        assert outer.signal is signal.SIGINT
