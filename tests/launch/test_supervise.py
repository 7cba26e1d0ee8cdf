"""A launch is followed to its end, and nothing of it outlives it."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from harness.launch.heartbeats import UNENDED, Progress
from harness.launch.plan import LaunchPlan
from harness.launch.processes import identify, is_alive
from harness.launch.replay import execute
from harness.records.collect import LaunchOutcome

MakePlan = Callable[..., LaunchPlan]
HARNESS = Path(__file__).parent / "scripted_harness.py"


def run(plan):
    return execute(plan, on_progress=lambda _: None)


def worker(plan, script, *arguments):
    return replace(plan, worker=(script, str(plan.run_dir), *arguments))


def rank_pids(run_dir, count=2):
    """The pids that the ranks wrote down; waits until all have."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        written = [path.read_text() for path in (run_dir / "ranks").glob("pid_*")]
        if len(written) == count and all(written):
            return [int(text) for text in written]
        time.sleep(0.02)
    raise AssertionError(f"only {len(written)} of {count} ranks started")


def all_gone(pids, within_s=8.0):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        left = [p for pid in pids if (p := identify(pid)) is not None and is_alive(p)]
        if not left:
            return True
        time.sleep(0.05)
    return False


def test_a_run_whose_ranks_all_end_well_is_ok(make_plan, fake_python, two_ranks):
    plan = worker(make_plan(python=fake_python), two_ranks, "ok")
    outcome = run(plan)
    assert (outcome.status, outcome.exit_code, outcome.reason, outcome.num_killed) == ("ok", 0, None, 0)
    assert LaunchOutcome.model_validate_json(plan.outcome_file().read_text()) == outcome


def test_progress_reaches_the_caller(make_plan, fake_python, two_ranks):
    plan = worker(make_plan(python=fake_python), two_ranks, "ok")
    seen: list[Progress] = []
    execute(plan, on_progress=seen.append)
    assert (seen[-1].phase, seen[-1].step, seen[-1].last_step_s, seen[-1].eta_s) == ("finish", 4, 0.02, 0.0)


def test_a_failing_rank_is_named_with_its_exit_code(make_plan, fake_python, two_ranks):
    outcome = run(worker(make_plan(python=fake_python), two_ranks, "exit3", "1"))
    assert (outcome.status, outcome.rank, outcome.reason) == ("failed", 1, "rank 1 exited with code 3")


def test_a_killed_rank_is_named_with_its_signal(make_plan, fake_python, two_ranks):
    outcome = run(worker(make_plan(python=fake_python), two_ranks, "killed", "1"))
    assert (outcome.status, outcome.rank, outcome.reason) == ("failed", 1, "rank 1 was killed by SIGKILL")


def test_a_silent_rank_is_a_hang_and_leaves_its_stack(make_plan, fake_python, two_ranks):
    plan = worker(make_plan(python=fake_python, hang_timeout_s=0.8), two_ranks, "hang", "1")
    outcome = run(plan)
    assert (outcome.status, outcome.rank) == ("hang", 1)
    assert "blocked_for_ever" in (plan.run_dir / "logs" / "rank_001.log").read_text()
    assert all_gone(rank_pids(plan.run_dir))


@pytest.mark.parametrize("limit", [{"hang_timeout_s": 0.8}, {"timeout_s": 3.0}])
def test_ranks_that_left_their_records_and_do_not_end_make_a_finished_run(make_plan, fake_python, two_ranks, limit):
    plan = worker(make_plan(python=fake_python, **limit), two_ranks, "recorded", "1")
    outcome = run(plan)
    assert (outcome.status, outcome.rank, outcome.reason) == ("ok", None, None)
    assert outcome.notes == (UNENDED.note,)
    assert "blocked_for_ever" in (plan.run_dir / "logs" / "rank_001.log").read_text()
    assert all_gone(rank_pids(plan.run_dir))


def test_a_job_that_was_suspended_as_a_whole_is_no_hang_and_the_run_says_so(make_plan, fake_python, two_ranks):
    plan = worker(make_plan(python=fake_python, hang_timeout_s=2.5), two_ranks, "slow")
    pids: list[int] = []

    def suspend(progress):
        if pids or progress.step is None:
            return
        pids.extend(rank_pids(plan.run_dir))
        signal_all(pids, signal.SIGSTOP)
        time.sleep(4.0)  # this callback holds up the harness, as a suspension does
        threading.Timer(0.3, signal_all, (pids, signal.SIGCONT)).start()

    outcome = execute(plan, on_progress=suspend)
    assert (outcome.status, outcome.reason) == ("ok", None)
    (note,) = outcome.notes
    assert re.fullmatch(r"mbr-perf itself did not run for 4\.\d s; this time does not count as silence .*", note), note


def signal_all(pids, number):
    for pid in pids:
        os.kill(pid, number)


def test_ranks_without_records_that_do_not_end_hang(make_plan, fake_python, two_ranks):
    outcome = run(worker(make_plan(python=fake_python, hang_timeout_s=0.8), two_ranks, "lingers"))
    assert (outcome.status, outcome.notes) == ("hang", ())


def test_a_run_past_its_time_limit_is_stopped(make_plan, fake_python, two_ranks):
    plan = worker(make_plan(python=fake_python, timeout_s=0.8), two_ranks, "hang")
    outcome = run(plan)
    assert (outcome.status, outcome.rank) == ("timeout", None)
    assert all_gone(rank_pids(plan.run_dir))


def test_a_dead_agent_takes_its_ranks_with_it(make_plan, fake_python):
    outcome = run(make_plan("die", python=fake_python))
    assert (outcome.status, outcome.exit_code) == ("failed", -signal.SIGKILL)
    assert outcome.reason == "the torchrun agent was killed by SIGKILL and left no record; see logs/launcher.log"


def test_orphans_of_a_killed_agent_are_ended(make_plan, fake_python, two_ranks):
    plan = worker(make_plan(python=fake_python), two_ranks, "stubborn")

    def kill_agent():
        pid = rank_pids(plan.run_dir)[0]
        time.sleep(1.3)  # the harness looks for descendants once a second
        os.kill(int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)

    killer = threading.Thread(target=kill_agent)
    killer.start()
    outcome = run(plan)
    killer.join()
    assert (outcome.status, outcome.exit_code, outcome.num_killed) == ("failed", -signal.SIGKILL, 2)
    assert all_gone(rank_pids(plan.run_dir), within_s=0.5)


def test_success_without_a_record_is_no_success(make_plan, fake_python):
    outcome = run(make_plan("silent-success", python=fake_python))
    assert (outcome.status, outcome.exit_code) == ("failed", 0)


def test_a_record_of_an_earlier_launch_does_not_count(make_plan, fake_python):
    plan = make_plan("silent-success", python=fake_python)
    plan.agent_file.parent.mkdir(parents=True)
    plan.agent_file.write_text('{"status": "ok"}')
    assert run(plan).status == "failed"


def test_a_port_that_was_taken_is_retried_once_with_another(make_plan, fake_python, two_ranks):
    plan = worker(make_plan(python=fake_python), two_ranks, "ok", "0", "port-taken-once")
    assert run(plan).status == "ok"
    assert len(set((plan.run_dir / "ranks" / "ports").read_text().split())) == 2


def test_a_port_that_the_user_chose_is_not_changed(make_plan, fake_python, two_ranks):
    plan = worker(make_plan(python=fake_python), two_ranks, "ok", "0", "port-taken-once")
    outcome = run(replace(plan, rendezvous=replace(plan.rendezvous, chosen_port=False)))
    assert (outcome.status, outcome.reason) == (
        "failed",
        "torchrun could not start ranks: DistNetworkError: EADDRINUSE",
    )


def test_a_listener_that_fails_does_not_leave_ranks_behind(make_plan, fake_python, two_ranks):
    plan = worker(make_plan(python=fake_python), two_ranks, "hang")

    def fail(_):
        rank_pids(plan.run_dir)
        raise BrokenPipeError("the terminal is gone")

    with pytest.raises(BrokenPipeError):
        execute(plan, on_progress=fail)
    assert all_gone(rank_pids(plan.run_dir), within_s=0.5)


@contextmanager
def started_harness(plan, *arguments):
    """A harness in a process of its own, killed at the end whatever happened."""
    command = [sys.executable, str(HARNESS), str(plan.run_dir), plan.python, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as harness:
        try:
            yield harness
        finally:
            harness.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_harness_stops_its_ranks_and_says_so(make_plan, fake_python, two_ranks, number):
    plan = make_plan(python=fake_python)
    with started_harness(plan, two_ranks, str(plan.run_dir), "hang") as harness:
        pids = rank_pids(plan.run_dir)
        harness.send_signal(number)
        output, _ = harness.communicate(timeout=10)
    outcome = json.loads(output)
    assert (outcome["status"], outcome["signal"], outcome["exit_code"]) == ("interrupted", number, 128 + 15)
    assert all_gone(pids, within_s=0.5)


def test_a_second_ctrl_c_does_not_wait(make_plan, fake_python, two_ranks):
    plan = make_plan(python=fake_python)
    with started_harness(plan, two_ranks, str(plan.run_dir), "stubborn") as harness:
        pids = rank_pids(plan.run_dir)
        time.sleep(0.3)
        harness.send_signal(signal.SIGINT)
        time.sleep(0.5)
        asked_again = time.monotonic()
        harness.send_signal(signal.SIGINT)
        output, _ = harness.communicate(timeout=10)
    assert json.loads(output)["status"] == "interrupted"
    assert time.monotonic() - asked_again < 3.0
    assert all_gone(pids, within_s=0.5)
