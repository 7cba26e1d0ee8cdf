"""Processes are told apart by number and start time, folders by their owner; a crew polls rarely, and a signal is a value."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest

from harness.launch.crew import interruption, signals_raised
from harness.launch.processes import (
    adopt_orphans,
    adopted,
    bury,
    catches,
    claim,
    descendants,
    identify,
    is_alive,
    life_of,
    send,
    this_process,
)
from harness.records.rank import OWNER, Owner
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


def test_a_signal_ends_the_blocks_around_it_and_those_inside_and_no_later_one():
    with interruption() as outer:
        os.kill(os.getpid(), signal.SIGTERM)
        with interruption() as inner:
            assert inner.signal is signal.SIGTERM
        assert outer.signal is signal.SIGTERM
    with interruption() as later:
        assert later.signal is None
        with interruption():
            os.kill(os.getpid(), signal.SIGINT)
        assert later.signal is signal.SIGINT


def test_only_the_first_signal_raises_and_none_in_a_thread():
    errors = iter([InterruptedError()])
    with suppress(InterruptedError), signals_raised(lambda _: next(errors)), ExitStack() as clean_up:
        clean_up.callback(os.kill, os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert list(errors) == []
    with signals_raised(InterruptedError), ExitStack() as clean_up:
        clean_up.callback(os.kill, os.getpid(), signal.SIGTERM)
        with interruption():
            os.kill(os.getpid(), signal.SIGTERM)
    with ThreadPoolExecutor() as pool:
        pool.submit(signals_raised(InterruptedError).__enter__).result()


@pytest.fixture
def owned_by(tmp_path):
    """What is known of a folder that this process has claimed, with some facts of its claim changed."""

    def life(**changes):
        owner = this_process().model_copy(update=changes)
        (tmp_path / OWNER).write_text(owner.model_dump_json())
        return life_of(tmp_path)

    return life


def test_a_folder_of_a_living_process_is_alive(tmp_path):
    claim(tmp_path)
    assert life_of(tmp_path).state == "alive"
    assert Owner.model_validate_json((tmp_path / OWNER).read_text()).pid == os.getpid()


def test_where_proc_is_restricted_nothing_is_claimed_and_a_claimed_folder_is_unknown(tmp_path, monkeypatch):
    (claimed := tmp_path / "a").mkdir()
    claim(claimed)
    monkeypatch.setattr("harness.launch.processes._BOOT_ID", tmp_path / "restricted")
    claim(tmp_path)
    assert (life_of(claimed).state, (tmp_path / OWNER).exists()) == ("unknown", False)


def test_a_folder_of_a_process_that_ended_is_dead(tmp_path):
    program = f"from pathlib import Path; from harness.launch.processes import claim; claim(Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    life = life_of(tmp_path)
    assert (life.state, life.reason.endswith("is gone")) == ("dead", True)


@pytest.mark.parametrize(
    ("changes", "state", "reason"),
    [
        ({"start_ticks": 1}, "dead", ""),  # another process of the same number
        ({"boot_id": "another"}, "dead", ""),  # the machine was started anew
        ({"boot_id": "another", "hostname": "node7"}, "unknown", "node7"),
        ({"pid_namespace": "pid:[1]"}, "unknown", "container"),
    ],
)
def test_another_process_is_not_taken_for_the_owner_and_what_cannot_be_seen_from_here_is_unknown(
    owned_by, changes, state, reason
):
    life = owned_by(**changes)
    assert life.state == state and reason in life.reason


def test_a_folder_without_a_claim_or_with_a_damaged_one_is_unknown(tmp_path):
    assert life_of(tmp_path).state == "unknown"
    (tmp_path / OWNER).write_text("{")
    assert (life_of(tmp_path).state, "not JSON" in life_of(tmp_path).reason) == ("unknown", True)
