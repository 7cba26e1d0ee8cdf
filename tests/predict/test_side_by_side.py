"""What runs in threads ends when its caller is interrupted."""

import os
import signal
import time
from threading import Event, Timer

import pytest

from harness.predict.tracer import side_by_side


def test_answers_come_in_the_order_of_the_questions():
    assert side_by_side(lambda number: number * number, (3, 1, 2), 2, Event()) == [9, 1, 4]


def test_an_interruption_stops_the_calls_under_way_and_begins_no_other():
    stop, begun = Event(), []

    def ask(number: int) -> bool:
        begun.append(number)
        return stop.wait(60)

    Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        side_by_side(ask, range(5), 2, stop)
    assert time.monotonic() - before < 20
    assert sorted(begun) == [0, 1]


def test_a_call_that_fails_stops_the_others():
    stop = Event()

    def ask(fails: bool) -> bool:
        if fails:
            raise ValueError("broken")
        return stop.wait(60)

    before = time.monotonic()
    with pytest.raises(ValueError, match="broken"):
        side_by_side(ask, (True, False), 2, stop)
    assert time.monotonic() - before < 20
