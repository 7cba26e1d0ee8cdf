"""A node whose peer ended badly stops too, after a grace in which its own ranks may find out."""

from harness.launch.plan import Rendezvous
from harness.launch.supervise import Peers
from harness.records.collect import LaunchOutcome
from harness.records.store import write_atomically


def second_of_three(make_plan):
    plan = make_plan(rendezvous=Rendezvous(3, 1, "127.0.0.1", 29500, chosen_port=False))
    (plan.run_dir / "ranks").mkdir(parents=True)
    return plan


def ended(plan, node, **fields):
    outcome = LaunchOutcome.model_validate(fields)
    write_atomically(plan.run_dir / "ranks" / f"outcome_node_{node:03d}.json", outcome.model_dump_json())


def test_nodes_at_work_stop_nobody(make_plan):
    assert Peers(second_of_three(make_plan)).reason_to_stop(1e9) == ""


def test_a_node_that_ended_well_stops_nobody(make_plan):
    plan = second_of_three(make_plan)
    ended(plan, 2, status="ok")
    peers = Peers(plan, grace_s=5.0)
    assert [peers.reason_to_stop(now) for now in (0.0, 100.0)] == ["", ""]


def test_a_node_that_ended_badly_stops_the_others_after_the_grace(make_plan):
    plan = second_of_three(make_plan)
    peers = Peers(plan, grace_s=5.0)
    assert peers.reason_to_stop(0.0) == ""
    ended(plan, 2, status="failed", reason="rank 5 was killed by SIGKILL")
    assert [peers.reason_to_stop(now) for now in (1.0, 5.9)] == ["", ""]
    assert peers.reason_to_stop(6.0) == "node 2 ended 5 s earlier: rank 5 was killed by SIGKILL"


def test_the_outcome_of_this_node_is_not_a_peers(make_plan):
    plan = second_of_three(make_plan)
    ended(plan, 1, status="failed", reason="its own")
    assert Peers(plan, grace_s=0.0).reason_to_stop(1.0) == ""


def test_half_a_file_stops_nobody(make_plan):
    plan = second_of_three(make_plan)
    (plan.run_dir / "ranks" / "outcome_node_000.json").write_text('{"status": "fail')
    assert Peers(plan, grace_s=0.0).reason_to_stop(1.0) == ""
