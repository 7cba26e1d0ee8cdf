"""Ctrl-C while logs are read: the first stops the reading, the second ends the program."""

import signal

import pytest

from harness.diagnose.run import stopped_by_ctrl_c
from harness.foreign.logs.sources import Passage


class EndedError(Exception):
    """Stands in for KeyboardInterrupt, which would end the other tests too."""


def end(_number, _frame):
    raise EndedError


def ctrl_c():
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def _handler():
    """Make Ctrl-C end the program, as outside of the reading."""
    before = signal.signal(signal.SIGINT, end)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_first_ctrl_c_stops_the_reading_and_the_second_ends_the_program():
    passage = Passage(num_bytes=2_500_000)
    with stopped_by_ctrl_c(passage):
        ctrl_c()
        assert passage.is_stopped
        with pytest.raises(EndedError):
            ctrl_c()
    assert len(passage.notes) == 1
    assert "2.5 MB" in passage.notes[0]
