"""Processes are told apart by number and start time, and only our own are touched."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from harness.launch.processes import (
    adopt_orphans,
    adopted,
    bury,
    catches,
    descendants,
    has_pending,
    identify,
    is_alive,
    send,
)
from tests.waiting import wait_until


@pytest.fixture
def child():
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_a_signal_reaches_its_process_and_not_one_that_took_over_the_number(child):
    process = identify(child.pid)
    assert not send(replace(process, start_ticks=process.start_ticks - 1), signal.SIGKILL)
    assert child.poll() is None
    assert send(process, signal.SIGTERM)
    assert child.wait(5) == -signal.SIGTERM


def test_a_dead_process_is_neither_alive_nor_signalled(child):
    process = identify(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
    assert not is_alive(process)
    assert not send(process, signal.SIGTERM)
    child.wait()
    assert identify(child.pid) is None
    assert not send(process, signal.SIGTERM)


def test_grandchildren_are_found():
    command = ["sh", "-c", "sleep 60 & echo $!; wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        grandchild = int(parent.stdout.readline())
        found = {process.pid for process in descendants(os.getpid())}
        assert {parent.pid, grandchild} <= found
        assert {process.pid for process in descendants(parent.pid)} == {grandchild}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            cousin = int(other.stdout.readline())
            assert {process.pid for process in descendants(parent.pid, other.pid)} == {grandchild, cousin}
            os.kill(cousin, signal.SIGKILL)
        os.kill(grandchild, signal.SIGKILL)


def test_only_a_process_with_a_handler_catches_a_signal(child):
    former = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        me = identify(os.getpid())
        assert catches(me, signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert not catches(identify(child.pid), signal.SIGUSR1)


def test_a_signal_is_pending_until_the_process_receives_it(child):
    process = identify(child.pid)
    send(process, signal.SIGSTOP)
    assert not has_pending(process, signal.SIGTERM)
    send(process, signal.SIGTERM)
    assert has_pending(process, signal.SIGTERM)
    send(process, signal.SIGCONT)
    child.wait(10)
    assert not has_pending(process, signal.SIGTERM)


def test_an_orphan_comes_home_and_is_known_by_its_mark():
    adopt_orphans()
    mark = f"MBR_TEST_MARK={os.getpid()}"
    name, value = mark.split("=")
    command = ["sh", "-c", "sleep 60 >/dev/null & echo $!"]
    made = subprocess.run(command, env={**os.environ, name: value}, stdout=subprocess.PIPE, text=True, check=True)
    orphan = int(made.stdout)
    process = identify(orphan)
    assert adopted(mark) == (process,)
    assert adopted("MBR_TEST_MARK=other") == ()
    assert send(process, signal.SIGKILL)
    assert wait_until(lambda: bury([process]) or identify(orphan) is None, 5.0)


def test_a_name_with_brackets_and_spaces_does_not_confuse():
    code = (
        "import ctypes, time; ctypes.CDLL(None).prctl(15, b'a) S 1 (b', 0, 0, 0); print(1, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as renamed:
        renamed.stdout.readline()
        assert renamed.pid in {process.pid for process in descendants(os.getpid())}
        renamed.kill()
