"""A launch is followed to its end, and nothing of it outlives it; who began a failure, what a peer does then, and the sampler."""

import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace

import pytest

from harness.launch.heartbeats import UNENDED, first_failure, verdict
from harness.launch.plan import Nodes
from harness.launch.supervise import lost_peer
from harness.records.collect import AgentRecord, LaunchOutcome, RankExit
from tests.launch.conftest import all_gone, kill_agent_of, rank_pids, run, started_harness


def test_a_run_whose_ranks_all_end_well_is_ok_and_its_progress_reaches_the_caller(scripted):
    plan, seen = scripted("ok"), []
    outcome = run(plan, on_progress=seen.append)
    assert (outcome.status, outcome.exit_code, outcome.reason, outcome.num_killed) == ("ok", 0, None, 0)
    assert LaunchOutcome.model_validate_json(plan.outcome_file().read_text()) == outcome
    assert (seen[-1].phase, seen[-1].step, seen[-1].last_step_s, seen[-1].eta_s) == ("finish", 4, 0.02, 0.0)


@pytest.mark.parametrize(("behaviour", "reason"), [("exit3", "code 3"), ("killed", "SIGKILL")])
def test_a_failing_rank_is_named(scripted, behaviour, reason):
    outcome = run(scripted(behaviour, "1"))
    assert (outcome.status, outcome.rank) == ("failed", 1)
    assert outcome.reason.startswith("rank 1 ") and outcome.reason.endswith(reason)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behaviour", "limit", "status", "ranks"),
    [
        (("hang", "1"), {"hang_timeout_s": 0.8}, "hang", {1}),
        (("lingers", "1"), {"hang_timeout_s": 0.8}, "hang", {0, 1}),  # without records both wait for an end
        (("hang",), {"timeout_s": 0.8}, "timeout", {None}),
        # They left their records: a finished run.
        (("recorded", "1"), {"hang_timeout_s": 0.8}, "ok", {None}),
        (("recorded", "1"), {"timeout_s": 3.0}, "ok", {None}),
    ],
)
def test_ranks_past_a_limit_leave_their_stacks_and_are_ended(scripted, behaviour, limit, status, ranks):
    plan = scripted(*behaviour, **limit)
    outcome = run(plan)
    assert outcome.status == status and outcome.rank in ranks
    assert outcome.notes == ((UNENDED,) if status == "ok" else ())
    assert "blocked_for_ever" in (plan.run_dir / "logs" / "rank_001.log").read_text()
    assert all_gone(rank_pids(plan))


def signal_all(pids, number):
    for pid in pids:
        os.kill(pid, number)


@pytest.mark.parametrize(("behaviour", "exit_code"), [("die", -signal.SIGKILL), ("silent-success", 0)])
def test_an_agent_that_leaves_no_record_is_no_success_whatever_an_earlier_one_left(
    make_plan, scripted, behaviour, exit_code
):
    plan = make_plan(behaviour, python=scripted().python)
    plan.agent_file.parent.mkdir(parents=True)
    plan.agent_file.write_text('{"status": "ok"}')
    outcome = run(plan)
    assert (outcome.status, outcome.exit_code) == ("failed", exit_code)


@pytest.mark.slow
def test_orphans_of_a_killed_agent_are_ended(scripted):
    plan = scripted("stubborn")

    def kill_agent():
        rank_pids(plan)
        time.sleep(2.3)  # the harness looks for descendants every other second
        kill_agent_of(plan)

    killer = threading.Thread(target=kill_agent)
    killer.start()
    outcome = run(plan)
    killer.join()
    assert (outcome.status, outcome.exit_code, outcome.num_killed) == ("failed", -signal.SIGKILL, 2)
    assert all_gone(rank_pids(plan), within_s=0.5)


def test_a_listener_that_fails_does_not_leave_ranks_behind(scripted):
    plan = scripted("hang")

    def fail(_):
        rank_pids(plan)
        raise BrokenPipeError("the terminal is gone")

    with pytest.raises(BrokenPipeError):
        run(plan, on_progress=fail)
    assert all_gone(rank_pids(plan), within_s=0.5)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_harness_stops_its_ranks_and_says_so(scripted, number):
    plan = scripted("hang")
    with started_harness(plan) as harness:
        pids = rank_pids(plan)
        harness.send_signal(number)
        output, _ = harness.communicate(timeout=10)
    outcome = json.loads(output)
    assert (outcome["status"], outcome["signal"], outcome["exit_code"]) == ("interrupted", number, 128 + 15)
    assert all_gone(pids, within_s=0.5)


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait(scripted):
    plan = scripted("stubborn")
    with started_harness(plan) as harness:
        pids = rank_pids(plan)
        time.sleep(0.3)
        harness.send_signal(signal.SIGINT)
        time.sleep(0.5)
        asked_again = time.monotonic()
        harness.send_signal(signal.SIGINT)
        output, _ = harness.communicate(timeout=10)
    assert json.loads(output)["status"] == "interrupted"
    assert time.monotonic() - asked_again < 3.0
    assert all_gone(pids, within_s=0.5)


def ended(*exits, first):
    failures = tuple(RankExit(rank=r, local_rank=r, pid=r, exit_code=code, signal=name) for r, code, name in exits)
    return AgentRecord(status="failed", first_rank=first, failures=failures)


@pytest.mark.parametrize(
    ("record", "rank"),
    [
        (ended((0, -15, "SIGTERM"), (1, 3, None), first=0), 1),
        (ended((0, 1, None), (1, -9, "SIGKILL"), first=0), 1),
        (ended((0, 1, None), (1, 1, None), first=1), 1),
        (ended((0, -11, "SIGSEGV"), (1, -9, "SIGKILL"), first=1), 1),
        (ended((0, -15, "SIGTERM"), (1, -15, "SIGTERM"), first=1), 1),
    ],
)
def test_the_rank_that_began_it_is_not_one_that_torchrun_ended(record, rank):
    first = first_failure(record)
    assert first.rank == rank


@pytest.mark.parametrize(
    ("agent", "exit_code", "status", "reason"),
    [
        (AgentRecord(status="ok"), 0, "ok", ""),
        (AgentRecord(status="ok"), 1, "failed", "code 1"),
        (AgentRecord(status="signalled", signal=15), 143, "failed", " SIGTERM"),
        (AgentRecord(status="error", error="no port"), 1, "failed", ": no port"),
        (ended((4, -34 - 1, "signal 35"), first=4), 1, "failed", "signal 35"),
        (None, -9, "failed", "SIGKILL and left nothing"),
        (None, 0, "failed", "code 0 and left nothing"),
    ],
)
def test_the_ending_says_what_happened(agent, exit_code, status, reason):
    ending = verdict(agent, exit_code, "left nothing")
    assert ending.status == status and reason in (ending.reason or "")


@pytest.fixture
def plan(make_plan):
    """The second of three nodes."""
    plan = make_plan(rendezvous=Nodes(3, 1, "127.0.0.1", 29500))
    (plan.run_dir / "ranks").mkdir(parents=True)
    return plan


def left(plan, node, text):
    (plan.run_dir / "ranks" / f"outcome_node_{node:03d}.json").write_text(text)


FAILED = LaunchOutcome(status="failed", reason="rank 5 was killed by SIGKILL").model_dump_json()


@pytest.mark.parametrize(
    ("node", "text"),
    [(2, LaunchOutcome(status="ok").model_dump_json()), (1, FAILED), (0, FAILED[:15])],
    ids=["ended well", "this node's own", "half a file"],
)
def test_what_is_no_bad_end_of_a_peer_stops_nobody(plan, node, text):
    gone = {}
    assert lost_peer(plan, gone, 1e9, grace_s=0.0) == ""
    left(plan, node, text)
    assert [lost_peer(plan, gone, now, grace_s=0.0) for now in (1e9, 2e9)] == ["", ""]


def test_a_node_that_ended_badly_stops_the_others_after_the_grace(plan):
    gone = {}
    assert lost_peer(plan, gone, 0.0, grace_s=5.0) == ""
    left(plan, 2, FAILED)
    assert [lost_peer(plan, gone, now, grace_s=5.0) for now in (1.0, 5.9)] == ["", ""]
    reason = lost_peer(plan, gone, 6.0, grace_s=5.0)
    assert [named for named in ("node 2 ", " 5 s ", "rank 5 ", "SIGKILL") if named not in reason] == []


SAMPLER = """
import json, os, pathlib, signal, sys, time
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
ranks_at_first_look = len(list(out.parent.glob("pid_*")))
def finish(number, frame):
    out.write_text(json.dumps({"at_start": ranks_at_first_look, "at_end": len(list(out.parent.glob("pid_*")))}))
    sys.exit(0)
signal.signal(signal.SIGTERM, finish)
time.sleep(0.3)
out.write_text("{}")
time.sleep(60)
"""


@pytest.fixture
def sampled(scripted, tmp_path):
    """A plan with a sampler of this code; its script stands where the real one has `-m harness.engine.nvml`."""

    def make(code, *options):
        plan, script = scripted("ok"), tmp_path / "sampler.py"
        script.write_text(code)
        out = str(plan.run_dir / "ranks" / "nvml_n.json")
        return replace(plan, sampler=(sys.executable, str(script), "sample", "--out", out, *options))

    return make


def test_the_sampler_looks_before_the_first_rank_and_after_the_last(sampled):
    plan = sampled(SAMPLER)
    outcome = run(plan)
    assert (outcome.status, outcome.unwatched) == ("ok", None)
    assert json.loads(plan.sampler_file.read_text()) == {"at_start": 0, "at_end": 2}


def test_a_sampler_that_dies_does_not_stop_the_run_and_an_earlier_sample_is_not_taken_for_its_own(sampled):
    plan = sampled("raise SystemExit('no driver')")
    plan.sampler_file.parent.mkdir(parents=True)
    plan.sampler_file.write_text("old")
    outcome = run(plan)
    assert outcome.status == "ok" and "code 1" in outcome.unwatched
    assert plan.sampler_log.read_text() == "no driver\n"
    assert not plan.sampler_file.exists()
