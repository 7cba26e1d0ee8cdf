"""How a launch went: what the torchrun agent saw of each rank, and what the harness made of the whole."""

import signal
from typing import Literal

from harness.records.rank import SCHEMA_VERSION
from harness.spec.frozen import Frozen

# Set for a started process to the pid of the one that must outlive it.
PARENT_PID_VARIABLE = "MBR_PERF_PARENT_PID"

LaunchStatus = Literal["ok", "failed", "hang", "timeout", "interrupted"]


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; real-time signals have no name of their own."""
    known = {int(member): member.name for member in signal.Signals}
    return known.get(number, f"signal {number}")


def ended_how(exit_code: int) -> str:
    """``was killed by SIGKILL`` for -9, ``exited with code 1`` for 1."""
    return f"was killed by {signal_name(-exit_code)}" if exit_code < 0 else f"exited with code {exit_code}"


class RankExit(Frozen):
    """A rank that ended badly. ``exit_code`` is negative for a signal, whose name is ``signal``; text is redacted."""

    rank: int
    local_rank: int
    pid: int
    exit_code: int
    signal: str | None = None
    message: str | None = None


class AgentRecord(Frozen):
    """``ranks/launch.json``: the agent of one node, written whole when it ends by itself or by SIGTERM, SIGINT, SIGHUP.

    ``error``: the agent could not start ranks at all (port in use, rendezvous timeout), in words. ``unforkable``: a
    forked agent found before anything started that ranks forked from it would not be like fresh ones; ``error`` says why.
    """

    schema_version: int = SCHEMA_VERSION
    status: Literal["ok", "failed", "signalled", "error", "unforkable"]
    node_rank: int = 0
    first_rank: int | None = None
    failures: tuple[RankExit, ...] = ()
    signal: int | None = None
    error: str | None = None
    seconds: float = 0.0


class LaunchOutcome(Frozen):
    """``ranks/outcome.json``: how the launch ended, as the harness that supervised it saw it.

    ``exit_code`` is the agent's, negative for a signal, None when none was started. ``signal`` is the one that
    interrupted the harness. ``rank`` is the rank that died first or hung. ``reason`` says the rest in one sentence.
    ``warm``: agent and ranks were forked from a process that had imported everything, so that no import is in their times.
    ``notes``: how it was started, where that is not the ordinary way or not as asked. ``unwatched``: why the NVML sampler
    did not see the end of it.
    """

    schema_version: int = SCHEMA_VERSION
    status: LaunchStatus
    exit_code: int | None = None
    agent: AgentRecord | None = None
    seconds: float = 0.0
    signal: int | None = None
    rank: int | None = None
    reason: str | None = None
    disk_full: bool = False
    num_killed: int = 0
    warm: bool = False
    notes: tuple[str, ...] = ()
    unwatched: str | None = None
