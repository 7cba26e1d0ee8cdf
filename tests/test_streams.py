"""A closed pipe changes nothing about the exit code."""

import subprocess
import sys

import pytest

from harness.app import readers_may_leave

ANSWER_THEN_REGRESSION = """
import sys
from harness.app import readers_may_leave
with readers_may_leave():
    print("x" * 1_000_000)
    print("y" * 1_000_000, file=sys.stderr)
    sys.exit(5)
"""


@pytest.mark.parametrize("redirection", ["| true", "2>&1 | true"])
def test_the_verdict_survives_a_reader_that_goes_away(redirection):
    command = f'"$0" -c "$1" {redirection}; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable, ANSWER_THEN_REGRESSION], capture_output=True, text=True, check=False
    )
    assert done.returncode == 5
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_what_is_read_arrives_whole():
    script = "from harness.app import readers_may_leave\nwith readers_may_leave():\n    print('é' * 100_000)"
    done = subprocess.run([sys.executable, "-X", "utf8", "-c", script], capture_output=True, check=True)
    assert done.stdout.decode() == "é" * 100_000 + "\n"


def test_streams_of_somebody_else_are_left_alone(capsys):
    before = sys.stdout
    with readers_may_leave():
        assert sys.stdout is before
        sys.stdout.write("here\n")
    assert capsys.readouterr().out == "here\n"
