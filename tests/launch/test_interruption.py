"""A signal is a value that nested blocks share."""

import os
import signal

from harness.launch.crew import interruption


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
