"""Reads heartbeats, and detects ranks that hang."""

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import get_args

from pydantic import ValidationError

from harness.records.collect import AgentRecord, LaunchOutcome, RankExit
from harness.records.launch import ended_how, signal_name
from harness.records.rank import Heartbeat, Phase

PATIENCE_IN_STEPS = 20
STARTING_S = 120.0  # a cold node loads torch and megatron from a shared file system
_READ_BYTES = 1 << 20
_ORDER = {phase: place for place, phase in enumerate(get_args(Phase))}


@dataclass(frozen=True)
class Progress:
    """The progress of the slowest rank. ``step``: the last step that every rank has finished; None before the first."""

    phase: Phase | None
    step: int | None
    num_steps: int
    last_step_s: float | None
    eta_s: float | None


@dataclass
class _Rank:
    """A rank's heartbeat file and its content. ``heard_at``: this process's monotonic clock; a wall clock may jump."""

    rank: int
    path: Path
    heard_at: float
    offset: int = 0
    partial: bytes = b""
    phase: Phase | None = None
    step: int | None = None
    sent_at: float = 0.0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=100))

    @property
    def place(self) -> tuple[int, int, float]:
        """Sorts ranks by progress; if equal, the rank with the oldest heartbeat first."""
        phase = -1 if self.phase is None else _ORDER[self.phase]
        return phase, -1 if self.step is None else self.step, self.sent_at

    def patience_s(self, settled_s: float) -> float:
        """Return how long the rank may be silent; ``settled_s`` applies during training."""
        return max(settled_s, STARTING_S) if self.phase in (None, "start", "import") else settled_s

    def read(self, now: float) -> bool:
        """Read appended lines. Return True if there were any."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                chunk = file.read(_READ_BYTES)
        except FileNotFoundError:
            return False
        if not chunk:
            return False
        self.offset += len(chunk)
        self.heard_at = now
        *lines, self.partial = (self.partial + chunk).split(b"\n")
        for line in lines:
            with suppress(ValidationError):  # a killed rank's torn line has no content
                heartbeat = Heartbeat.model_validate_json(line)
                self.phase, self.sent_at = heartbeat.phase, heartbeat.time_s
                if heartbeat.step is not None and heartbeat.seconds is not None:
                    self.step = heartbeat.step
                    self.seconds.append(heartbeat.seconds)
        return True


class Heartbeats:
    """All ranks of this node. Times are of ``time.monotonic``."""

    def __init__(self, run_dir: Path, ranks: range, num_steps: int, now: float) -> None:
        self.num_steps = num_steps
        self.began = now
        self._ranks = [
            _Rank(rank, run_dir / "ranks" / f"rank_{rank:03d}.progress.jsonl", heard_at=now) for rank in ranks
        ]

    def read(self, now: float) -> bool:
        """Read the new heartbeats of every rank. Return True if there were any."""
        news = [rank.read(now) for rank in self._ranks]
        return any(news)

    def progress(self) -> Progress:
        """Return the slowest rank's progress, and the expected end at the median step time so far."""
        slowest = min(self._ranks, key=lambda rank: rank.place)
        step = slowest.step
        pace = self._median_step_s()
        left = None if step is None else max(0, self.num_steps - step - 1)
        return Progress(
            phase=slowest.phase,
            step=step,
            num_steps=self.num_steps,
            last_step_s=slowest.seconds[-1] if slowest.seconds else None,
            eta_s=None if pace is None or left is None else left * pace,
        )

    def silence(self, now: float, floor_s: float) -> LaunchOutcome | None:
        """Return the hang of the rank with the least progress, silent for over max(``floor_s``, 20 median steps)."""
        settled = max(floor_s, PATIENCE_IN_STEPS * (self._median_step_s() or 0.0))
        working = [rank for rank in self._ranks if rank.phase != "finish"] or self._ranks
        silent = [rank for rank in working if now - rank.heard_at > rank.patience_s(settled)]
        if not silent:
            return None
        worst = min(silent, key=lambda rank: rank.place)
        limit = f"{now - worst.heard_at:.1f} s (limit {worst.patience_s(settled):.1f} s)"
        where = f"in phase {worst.phase}" if worst.phase else "before its first heartbeat"
        after = f" after step {worst.step}" if worst.step is not None else ""
        what = f"rank {worst.rank} gave no sign of life for {limit} {where}{after}"
        why = f"{what}; the stacks of all ranks are in their logs"
        return LaunchOutcome(status="hang", reason=why, rank=worst.rank)

    def _median_step_s(self) -> float | None:
        seconds = [s for rank in self._ranks for s in rank.seconds]
        return median(seconds) if seconds else None


UNENDED = (
    "all ranks wrote their records, but some processes did not end; mbr-perf stopped them. Their stacks are in the "
    "ranks' logs"
)
"""The note on a run that mbr-perf stopped after all measurements, because shutting down communication can hang."""


def verdict(agent: AgentRecord | None, exit_code: int, unreadable: str) -> LaunchOutcome:
    """Return how a run ended that was not stopped. Success needs exit code 0 and the agent's record."""
    if agent and agent.status == "ok" and exit_code == 0:
        return LaunchOutcome(status="ok")
    first = first_failure(agent) if agent else None
    if agent is None:
        why = f"the torchrun agent {ended_how(exit_code)} and {unreadable}; see logs/launcher.log"
    elif agent.status == "signalled" and agent.signal is not None:
        why, first = f"another process sent {signal_name(agent.signal)} to the torchrun agent", None
    elif agent.status in ("error", "unforkable"):
        why, first = f"torchrun could not start ranks: {agent.error}", None
    elif first is None:
        why = f"the torchrun agent exited with code {exit_code}; see logs/launcher.log"
    else:
        how = f"was killed by {first.signal}" if first.signal else f"exited with code {first.exit_code}"
        why = f"rank {first.rank} {how}"
    return LaunchOutcome(status="failed", reason=why, rank=first.rank if first else None)


def first_failure(agent: AgentRecord) -> RankExit | None:
    """Return the rank that most likely failed first: killed by a signal, then failed, then torchrun's own guess."""

    def weight(rank_exit: RankExit) -> tuple[int, bool, int]:
        kind = 2 if rank_exit.signal == "SIGTERM" else 0 if rank_exit.signal else 1
        return kind, rank_exit.rank != agent.first_rank, rank_exit.rank

    return min(agent.failures, key=weight, default=None)
