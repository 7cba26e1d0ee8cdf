"""Who began a failure, from exit codes and signals."""

import pytest

from harness.launch.heartbeats import first_failure, port_was_taken, verdict
from harness.records.collect import AgentRecord, LaunchOutcome, RankExit


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
    assert ending.status == status and reason in ending.reason


def test_only_an_agent_that_could_not_listen_lost_its_port():
    taken = AgentRecord(status="error", error="DistNetworkError: EADDRINUSE")
    assert port_was_taken(LaunchOutcome(status="failed", agent=taken))
    assert not port_was_taken(LaunchOutcome(status="failed", agent=AgentRecord(status="error", error="timeout")))
    assert not port_was_taken(LaunchOutcome(status="failed"))
