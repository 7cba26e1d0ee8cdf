"""A forked agent does nothing before the harness has said that it still wants it."""

import subprocess
import sys

import pytest

from tests.waiting import runs, wait_until

STARTER = """
import os, socket, sys
from harness.engine.warm_parent import fork_agent
from harness.records.collect import WarmRequest
request = WarmRequest(arguments=("--no_such_option",), num_ranks=1, environment={}, log=sys.argv[1], folder="/")
pid, go = fork_agent(request, socket.socketpair()[0], {})
os.write(go, sys.argv[2].encode())
os.close(go)
print(pid)
"""


@pytest.mark.train
@pytest.mark.parametrize(("word", "begins"), [("go", True), ("", False)])
def test_an_agent_begins_at_the_harnesss_word_and_ends_without_it(tmp_path, word, begins):
    log = tmp_path / "launcher.log"
    log.touch()
    done = subprocess.run(
        (sys.executable, "-c", STARTER, str(log), word), stdout=subprocess.PIPE, text=True, timeout=100, check=True
    )
    assert wait_until(lambda: not runs(int(done.stdout)), 60.0)
    assert ("usage:" in log.read_text()) is begins
