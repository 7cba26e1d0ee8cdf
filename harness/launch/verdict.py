"""How a launch went: from what the agent recorded, or from the reason it was stopped."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from harness.launch.heartbeats import Silence
from harness.records.launch import AgentRecord, LaunchOutcome, LaunchStatus, RankExit, ended_how, signal_name


@dataclass(frozen=True)
class Ending:
    """How a run ended, by itself or because it was stopped, in one sentence; ``signal`` interrupted the harness.

    ``note`` describes a problem at the end of the run that cost no measurement.
    """

    status: LaunchStatus
    reason: str
    rank: int | None = None
    signal: int | None = None
    note: str = ""


def hang(silence: Silence) -> Ending:
    """The ending of a run whose watchdog lost patience."""
    where = f"in phase {silence.phase}" if silence.phase else "before its first heartbeat"
    after = f" after step {silence.step}" if silence.step is not None else ""
    reason = (
        f"rank {silence.rank} gave no sign of life for {silence.age_s:.1f} s (patience {silence.patience_s:.1f} s) "
        f"{where}{after}; the stacks of all ranks are in their logs"
    )
    return Ending("hang", reason, rank=silence.rank)


UNENDED = Ending(
    "ok",
    "",
    note="all ranks finished and wrote their records, but some of their processes did not end; mbr-perf stopped them. "
    "Their stacks are in the ranks' logs",
)
"""The ending of a run that mbr-perf stopped after all measurements: the end of communication can hang."""


def read_agent_record(path: Path) -> tuple[AgentRecord | None, str]:
    """The agent's record, or None with what is wrong with it."""
    try:
        return AgentRecord.model_validate_json(path.read_text()), ""
    except FileNotFoundError:
        return None, "left no record"
    except ValidationError as error:
        return None, f"left a record that cannot be read: {error.errors()[0]['msg']}"


def verdict(agent: AgentRecord | None, exit_code: int, unreadable: str) -> Ending:
    """How a run that ended by itself went; exit code 0 alone is no proof, the agent must say so too."""
    if agent is None:
        return Ending("failed", f"the torchrun agent {ended_how(exit_code)} and {unreadable}; see logs/launcher.log")
    if agent.status == "ok" and exit_code == 0:
        return Ending("ok", "")
    if agent.status == "signalled" and agent.signal is not None:
        return Ending("failed", f"somebody sent {signal_name(agent.signal)} to the torchrun agent")
    if agent.status in ("error", "unforkable"):
        return Ending("failed", f"torchrun could not start ranks: {agent.error}")
    first = first_failure(agent)
    if first is None:
        return Ending("failed", f"the torchrun agent exited with code {exit_code}; see logs/launcher.log")
    how = f"was killed by {first.signal}" if first.signal else f"exited with code {first.exit_code}"
    return Ending("failed", f"rank {first.rank} {how}", rank=first.rank)


def first_failure(agent: AgentRecord) -> RankExit | None:
    """The rank that most likely began it: one killed by a signal, then one that failed, then torchrun's own guess.

    torchrun ends the others with SIGTERM, and its time stamps are whole seconds, so its order alone says little.
    """

    def weight(rank_exit: RankExit) -> tuple[int, bool, int]:
        kind = 2 if rank_exit.signal == "SIGTERM" else 0 if rank_exit.signal else 1
        return kind, rank_exit.rank != agent.first_rank, rank_exit.rank

    return min(agent.failures, key=weight, default=None)


def port_was_taken(outcome: LaunchOutcome) -> bool:
    """Whether the agent could not listen because somebody else does."""
    agent = outcome.agent
    return agent is not None and agent.status == "error" and "EADDRINUSE" in (agent.error or "")
