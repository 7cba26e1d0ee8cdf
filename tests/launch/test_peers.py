"""A node whose peer ended badly stops too, after a grace in which its own ranks may find out."""

import pytest

from harness.launch.plan import Rendezvous
from harness.launch.supervise import Peers
from harness.records.collect import LaunchOutcome


@pytest.fixture
def plan(make_plan):
    """The second of three nodes."""
    plan = make_plan(rendezvous=Rendezvous(3, 1, "127.0.0.1", 29500, chosen_port=False))
    (plan.run_dir / "ranks").mkdir(parents=True)
    return plan


def ended(plan, node, text):
    (plan.run_dir / "ranks" / f"outcome_node_{node:03d}.json").write_text(text)


FAILED = LaunchOutcome(status="failed", reason="rank 5 was killed by SIGKILL").model_dump_json()


@pytest.mark.parametrize(
    ("node", "text"),
    [(2, LaunchOutcome(status="ok").model_dump_json()), (1, FAILED), (0, FAILED[:15])],
    ids=["ended well", "this node's own", "half a file"],
)
def test_what_is_no_bad_end_of_a_peer_stops_nobody(plan, node, text):
    peers = Peers(plan, grace_s=0.0)
    assert peers.reason_to_stop(1e9) == ""
    ended(plan, node, text)
    assert [peers.reason_to_stop(now) for now in (1e9, 2e9)] == ["", ""]


def test_a_node_that_ended_badly_stops_the_others_after_the_grace(plan):
    peers = Peers(plan, grace_s=5.0)
    assert peers.reason_to_stop(0.0) == ""
    ended(plan, 2, FAILED)
    assert [peers.reason_to_stop(now) for now in (1.0, 5.9)] == ["", ""]
    reason = peers.reason_to_stop(6.0)
    assert [named for named in ("node 2 ", " 5 s ", "rank 5 ", "SIGKILL") if named not in reason] == []
