"""A crew polls its processes rarely, and names stopped ones."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from harness.launch.crew import MAX_LOOKING, TERMINATE_S, Crew, Interruption


class Agent(subprocess.Popen[bytes]):
    """Counts the looks: each asks once whether it runs."""

    num_looks = 0

    def poll(self) -> int | None:
        self.num_looks += 1
        return super().poll()


def test_whoever_keeps_looking_looks_for_a_small_share_of_the_time() -> None:
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


def seconds(action: Callable[[], None]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


WHY = "by SIGSTOP or a debugger; kill -CONT before the timeout continues"


def test_a_stopped_process_is_named_and_the_agent_first() -> None:
    with started("sleep 60 & echo $!; wait") as agent:
        assert agent.stdout is not None
        rank, crew = int(agent.stdout.readline()), Crew(agent)
        assert crew.stopped_text() == ""
        stop(rank)
        assert crew.stopped_text() == f"rank process {rank} is stopped ({WHY} it)"
        stop(agent.pid)
        assert crew.stopped_text() == f"the torchrun agent (process {agent.pid}) is stopped ({WHY} it)"
        crew.kill()


def test_of_many_stopped_processes_eight_are_named_and_the_rest_counted() -> None:
    with started("for i in 1 2 3 4 5 6 7 8 9 10; do sleep 60 & pids=$pids,$!; done; echo $pids; wait") as agent:
        assert agent.stdout is not None
        ranks, crew = sorted(map(int, agent.stdout.readline().strip(" ,\\n").split(","))), Crew(agent)
        for rank in ranks:
            stop(rank)
        named = ", ".join(map(str, ranks[:8]))
        assert crew.stopped_text() == f"10 rank processes are stopped ({WHY} them): {named} and 2 more"
        crew.kill()


def test_a_stopped_agent_is_killed_without_the_wait_for_an_orderly_end() -> None:
    with started("sleep 60; true") as agent:
        crew = Crew(agent)
        stop(agent.pid)
        assert seconds(lambda: crew.terminate(Interruption())) < TERMINATE_S


def started(script: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(("sh", "-c", script), stdout=subprocess.PIPE, text=True)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.001)
