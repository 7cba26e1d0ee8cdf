"""How much of a pipe is read, and how the reading is ended."""

import os
import subprocess
import threading

import pytest

from harness.records.logs.lines import log_lines
from harness.records.logs.sources import Passage


@pytest.fixture(name="endless")
def _endless():
    """A pipe into which a process writes for ever."""
    with subprocess.Popen(["yes", "a line of a job"], stdout=subprocess.PIPE) as process:
        yield process.stdout
        process.kill()


def test_a_pipe_without_end_is_read_up_to_a_limit_with_a_note(endless):
    passage = Passage(most_pipe_bytes=1 << 20)
    assert sum(1 for _ in log_lines(["-"], endless, passage)) == (1 << 20) // 16
    assert passage.notes == ["<stdin>: only the first 0.000977 GiB were read, the limit for a pipe."]


def test_a_file_is_read_whole_whatever_the_limit_of_pipes(tmp_path):
    (tmp_path / "a.log").write_text("a line of a job\n" * 1000)
    passage = Passage(most_pipe_bytes=100)
    assert sum(1 for _ in log_lines([tmp_path / "a.log"], passage=passage)) == 1000
    assert (passage.num_bytes, passage.total_bytes, passage.notes) == (16000, 16000, [])


def test_reading_a_silent_pipe_can_be_stopped():
    reading, writing = os.pipe()
    os.write(writing, b"one\n")
    passage = Passage()
    threading.Timer(0.3, setattr, (passage, "is_stopped", True)).start()
    with os.fdopen(reading, "rb") as stream:
        assert [line.text for line in log_lines(["-"], stream, passage)] == ["one"]
    os.close(writing)
