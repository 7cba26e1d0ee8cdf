"""Processes wait for the harness's word, end with their parent, show their stacks on request, and import without garbage collection."""

import gc
import os
import signal
import subprocess
import sys

import pytest

from harness.engine.process import garbage_collection_paused, importing_before_forks
from tests.engine.conftest import run_python
from tests.waiting import runs, wait_until

CHILD = "from harness.engine.process import die_with_parent; import time; die_with_parent(); print('alive', flush=True); time.sleep(60)"


def test_a_child_ends_when_its_parent_is_killed():
    parent = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {CHILD!r}]); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        child = int(process.stdout.readline())
        assert process.stdout.readline() == "alive\n"
        process.kill()
    assert wait_until(lambda: not runs(child))


@pytest.mark.parametrize(
    ("parent", "code", "printed"), [(1, -signal.SIGKILL, ""), (os.getpid(), 0, "alive\n")], ids=["gone", "here"]
)
def test_a_child_whose_parent_died_before_it_could_ask_ends_at_once(parent, code, printed):
    program = "from harness.engine.process import die_with_parent; die_with_parent(); print('alive')"
    ended = run_python("-c", program, MBR_PERF_PARENT_PID=str(parent))
    assert (ended.returncode, ended.stdout) == (code, printed)


def test_children_know_who_their_parent_is():
    code = (
        "import os, subprocess, sys; from harness.engine.process import be_parent_of_children; be_parent_of_children(); "
        "child = subprocess.run([sys.executable, '-c', 'import os; print(os.environ[\"MBR_PERF_PARENT_PID\"])'], "
        "capture_output=True, text=True); print(child.stdout.strip() == str(os.getpid()))"
    )
    assert run_python("-c", code).stdout == "True\n"


def test_a_process_that_shows_its_stacks_goes_on():
    code = (
        "import os, signal; from harness.engine.process import dump_stacks_on_signal; dump_stacks_on_signal()\n"
        "def inner(): os.kill(os.getpid(), signal.SIGUSR1)\n"
        "inner(); print('went on')"
    )
    ended = run_python("-c", code)
    assert ended.stdout == "went on\n"
    assert "in inner" in ended.stderr


@pytest.mark.parametrize("block", [garbage_collection_paused, importing_before_forks])
def test_no_garbage_is_collected_while_libraries_are_imported(block):
    with block():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with block():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


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
    assert bool(log.read_text()) is begins
