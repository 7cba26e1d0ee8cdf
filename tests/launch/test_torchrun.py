"""The real torchrun, in the agent's process, with ranks of a few lines: as a fresh process, and forked from a warm parent."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from harness.launch.environment import EnvVar
from harness.launch.processes import descendants
from harness.records.collect import AgentRecord
from tests.launch.conftest import all_gone, kill_agent_of, rank_pids, run, started_harness

pytestmark = pytest.mark.train
FRESH, WARM = False, pytest.param(True, marks=pytest.mark.slow)


@pytest.fixture(params=[FRESH, WARM], ids=["fresh", "warm"])
def parents(request):
    """None: a fresh torchrun."""
    return request.getfixturevalue("warm_parents") if request.param else None


def test_ranks_that_end_well_are_ok_and_the_outcome_says_how_they_were_started(torchrun, parents):
    plan = torchrun("ok")
    outcome = run(plan, parents)
    assert (outcome.status, outcome.exit_code, outcome.num_killed, outcome.warm) == ("ok", 0, 0, parents is not None)
    assert outcome.agent == AgentRecord.model_validate_json(plan.agent_file.read_text())
    assert len(outcome.notes) == (parents is not None)


def test_the_exit_code_of_a_rank_is_kept_and_no_name_server_asked_for_this_machine(torchrun, parents, tmp_path):
    plan, asked = torchrun("exit3", "1"), tmp_path / "asked"
    if not parents:
        code = (
            f"import socket\nsocket.gethostbyaddr = lambda name: open({str(asked)!r}, 'w').close() or (name, [], [])\n"
        )
        (tmp_path / "sitecustomize.py").write_text(code)
        plan = replace(
            plan, env=(*plan.env, EnvVar("PYTHONPATH", f"{tmp_path}:{Path.cwd()}", "inherited", "inherited"))
        )
    outcome = run(plan, parents)
    assert not asked.exists()
    assert (outcome.status, outcome.exit_code, outcome.rank, outcome.warm) == ("failed", 1, 1, parents is not None)
    exits = {r.rank: (r.exit_code, r.signal) for r in outcome.agent.failures}
    assert exits.pop(1) == (3, None)
    assert exits in ({0: (-15, "SIGTERM")}, {})  # torch 2.6 does not count whom it ended itself


def test_a_killed_rank_is_named_and_the_other_is_stopped(torchrun, parents):
    plan = torchrun("killed", "0")
    outcome = run(plan, parents)
    assert (outcome.status, outcome.rank, "SIGKILL" in outcome.reason) == ("failed", 0, True)
    assert all_gone(rank_pids(plan), within_s=0.5)


def test_a_hung_rank_shows_its_stack_and_is_stopped(torchrun, parents):
    plan = torchrun("hang", "1", hang_timeout_s=1.0)
    outcome = run(plan, parents)
    assert (outcome.status, outcome.rank, outcome.agent.status) == ("hang", 1, "signalled")
    assert "blocked_for_ever" in (plan.run_dir / "logs" / "rank_001.log").read_text()
    assert all_gone(rank_pids(plan), within_s=0.5)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, "interrupted"), (signal.SIGKILL, None)])
@pytest.mark.parametrize("options", [(), pytest.param(("--warm",), marks=pytest.mark.slow)])
def test_no_rank_outlives_the_harness(torchrun, light, options, number, status):
    plan = torchrun("hang")
    with started_harness(plan, *options, python_path=light) as harness:
        started = [*rank_pids(plan), *(process.pid for process in descendants(harness.pid))]
        harness.send_signal(number)
        output, _ = harness.communicate(timeout=15)
    assert all_gone(started)
    assert (json.loads(output)["status"] if output else None) == status


def test_no_rank_outlives_the_agent(torchrun, parents):
    plan, killed = torchrun("stubborn"), []

    def kill_agent(_):
        if not killed:
            killed.append(True)
            kill_agent_of(plan)

    outcome = run(plan, parents, on_progress=kill_agent)
    assert (outcome.status, outcome.exit_code, outcome.agent) == ("failed", -signal.SIGKILL, None)
    assert all_gone(rank_pids(plan), within_s=0.5)
