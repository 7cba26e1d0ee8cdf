"""The real torchrun, in the agent's process, with ranks of a few lines."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from harness.launch.environment import EnvVar
from harness.launch.plan import LaunchPlan
from harness.launch.processes import identify, is_alive
from harness.launch.replay import execute
from harness.records.collect import AgentRecord

pytestmark = pytest.mark.train
MakePlan = Callable[..., LaunchPlan]
FOLDER = Path(__file__).parent


@pytest.fixture
def torchrun(make_plan, two_ranks):
    """A plan for real torchrun whose two ranks do what the arguments say."""

    def make(*behaviour, **changes):
        shell = {**os.environ, "PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"}
        env = tuple(EnvVar(name, value, "inherited", "inherited") for name, value in shell.items())
        plan = make_plan(env=env, **changes)
        return replace(plan, worker=(two_ranks, str(plan.run_dir), *behaviour))

    return make


def run(plan):
    return execute(plan, on_progress=lambda _: None)


def pids(plan):
    """The pids of both ranks, once they have written them down."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        written = [path.read_text() for path in (plan.run_dir / "ranks").glob("pid_*")]
        if len(written) == 2 and all(written):
            return [int(text) for text in written]
        time.sleep(0.02)
    raise AssertionError((plan.launcher_log).read_text())


def all_gone(numbers, within_s=8.0):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not any((p := identify(n)) is not None and is_alive(p) for n in numbers):
            return True
        time.sleep(0.05)
    return False


def test_ranks_that_end_well_are_ok(torchrun):
    plan = torchrun("ok")
    outcome = run(plan)
    assert (outcome.status, outcome.exit_code, outcome.num_killed) == ("ok", 0, 0)
    assert outcome.agent == AgentRecord.model_validate_json(plan.agent_file.read_text())


def test_no_name_server_is_asked_for_this_machine(torchrun, tmp_path):
    asked = tmp_path / "asked"
    code = f"import socket\nsocket.gethostbyaddr = lambda name: open({str(asked)!r}, 'w').close() or (name, [], [])\n"
    (tmp_path / "sitecustomize.py").write_text(code)
    plan = torchrun("exit3", "1")
    path = EnvVar("PYTHONPATH", f"{tmp_path}:{Path.cwd()}", "inherited", "inherited")
    assert run(replace(plan, env=(*plan.env, path))).status == "failed"
    assert not asked.exists()


def test_the_exit_code_of_a_rank_is_kept(torchrun):
    outcome = run(torchrun("exit3", "1"))
    assert (outcome.status, outcome.exit_code, outcome.rank) == ("failed", 1, 1)
    assert outcome.agent is not None
    exits = {r.rank: (r.exit_code, r.signal) for r in outcome.agent.failures}
    assert exits.pop(1) == (3, None)
    assert exits in ({0: (-15, "SIGTERM")}, {})  # torch 2.6 does not count whom it ended itself


def test_a_killed_rank_is_named_and_the_other_is_stopped(torchrun):
    plan = torchrun("killed", "0")
    outcome = run(plan)
    assert (outcome.status, outcome.rank, outcome.reason) == ("failed", 0, "rank 0 was killed by SIGKILL")
    assert all_gone(pids(plan), within_s=0.5)


def test_a_hung_rank_shows_its_stack_and_is_stopped(torchrun):
    plan = torchrun("hang", "1", hang_timeout_s=1.0)
    outcome = run(plan)
    assert (outcome.status, outcome.rank) == ("hang", 1)
    assert outcome.agent is not None
    assert outcome.agent.status == "signalled"
    assert "blocked_for_ever" in (plan.run_dir / "logs" / "rank_001.log").read_text()
    assert all_gone(pids(plan), within_s=0.5)


def test_a_taken_port_is_reported_in_words(torchrun):
    plan = torchrun("ok")
    with socket.socket() as other:
        other.bind(("", plan.rendezvous.master_port))
        other.listen()
        outcome = run(replace(plan, rendezvous=replace(plan.rendezvous, chosen_port=False)))
    assert outcome.status == "failed"
    assert outcome.reason is not None
    assert "EADDRINUSE" in outcome.reason


def test_a_taken_port_that_nobody_asked_for_is_replaced(torchrun):
    plan = torchrun("ok")
    with socket.socket() as other:
        other.bind(("", plan.rendezvous.master_port))
        other.listen()
        outcome = run(plan)
    assert (outcome.status, outcome.reason) == ("ok", None)
    assert "EADDRINUSE" in plan.launcher_log.read_text()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, "interrupted"), (signal.SIGKILL, None)])
def test_no_rank_outlives_the_harness(torchrun, number, status):
    plan = torchrun("hang")
    command = [sys.executable, str(FOLDER / "scripted_harness.py"), str(plan.run_dir), plan.python, *plan.worker]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as harness:
        try:
            started = pids(plan)
            harness.send_signal(number)
            output, _ = harness.communicate(timeout=15)
        finally:
            with suppress(ProcessLookupError):
                harness.kill()
    assert all_gone(started)
    assert (json.loads(output)["status"] if output else None) == status


def test_no_rank_outlives_the_agent(torchrun):
    plan = torchrun("stubborn")
    killed: list[int] = []

    def kill_agent(_):
        if not killed:
            rank = pids(plan)[0]
            killed.append(int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1]))
            os.kill(killed[0], signal.SIGKILL)

    outcome = execute(plan, on_progress=kill_agent)
    assert (outcome.status, outcome.exit_code, outcome.agent) == ("failed", -signal.SIGKILL, None)
    assert all_gone(pids(plan), within_s=0.5)
