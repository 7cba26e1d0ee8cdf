"""Collects the records of the ranks and how the launch ended."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.experiment.frozen import Frozen
from harness.records.rank import Failure, Heartbeat, RankRecord, Recorded, StepRecord
from harness.records.reading import Model
from harness.records.run import NodeSample
from harness.records.strict_json import read_each, read_lines

LaunchStatus = Literal["ok", "failed", "hang", "timeout", "interrupted"]


class RankExit(Frozen):
    """A rank that failed. ``exit_code`` is negative for a signal, and ``signal`` names it. Text is redacted."""

    rank: int
    local_rank: int
    pid: int
    exit_code: int
    signal: str | None = None
    message: str | None = None


class AgentRecord(Recorded):
    """``ranks/launch.json``, by the agent of one node. ``error``: why it could not start ranks, or not fork them."""

    status: Literal["ok", "failed", "signalled", "error", "unforkable"]
    node_rank: int = 0
    first_rank: int | None = None
    failures: tuple[RankExit, ...] = ()
    signal: int | None = None
    error: str | None = None
    seconds: float = 0.0


class LaunchOutcome(Recorded):
    """``ranks/outcome.json``. ``exit_code``: of the agent, negative for a signal. ``rank``: it died first, or hung."""

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


RESTARTED = "RESTARTED"
"""In the reason of a node that was started again in the middle of a run. It takes no part in this run."""


def outcome_of_node(run_dir: Path, node_rank: int) -> Path:
    """Return the file with the outcome of one of several nodes."""
    return run_dir / "ranks" / f"outcome_node_{node_rank:03d}.json"


FailureKind = Literal["error", "signal", "lost", "hang", "timeout"]


@dataclass(frozen=True)
class Collected:
    """What ranks and samplers left. ``unwatched``: why a sampler stopped before the end of the run."""

    ranks: tuple[RankRecord, ...]
    nodes: tuple[NodeSample, ...]
    notes: tuple[str, ...] = ()
    unwatched: tuple[str, ...] = ()


def collect(run_dir: Path, world_size: int) -> Collected:
    """Read the record of every rank, of a killed one from its heartbeats. An unreadable file becomes a note."""
    folder, notes = run_dir / "ranks", list[str]()
    agents = _readable(folder.glob("launch*.json"), AgentRecord, notes)
    outcomes = _readable(folder.glob("outcome*.json"), LaunchOutcome, notes)
    exits = {ended.rank: ended for agent in agents for ended in agent.failures}
    ranks: list[RankRecord] = []
    for rank in range(world_size):
        found = _readable([folder / f"rank_{rank:03d}.json"], RankRecord, notes)
        ranks += found or [_rebuilt(folder, rank, world_size, exits.get(rank), outcomes, notes)]
    nodes = _readable(folder.glob("nvml_*.json"), NodeSample, notes)
    if snapshots := sorted(path.name for path in folder.glob("snapshot_*.pickle")):
        notes.append(f"memory snapshots: mbr-perf snapshot <run folder>/ranks/{snapshots[0]}")
    unwatched = tuple(outcome.unwatched for outcome in outcomes if outcome.unwatched)
    return Collected(tuple(ranks), tuple(nodes), tuple(notes), unwatched)


def read_heartbeats(path: Path) -> tuple[tuple[Heartbeat, ...], int]:
    """Read one rank's heartbeats in order, and count the invalid lines."""
    return read_lines(path, Heartbeat)


def _readable(paths: Iterable[Path], schema: type[Model], notes: list[str]) -> list[Model]:
    read, unread = read_each(sorted(path for path in paths if path.is_file()), schema)
    notes += [error.message for error in unread.values()]
    return [*read.values()]


def _rebuilt(
    folder: Path,
    rank: int,
    world_size: int,
    ended: RankExit | None,
    outcomes: list[LaunchOutcome],
    notes: list[str],
) -> RankRecord:
    name = f"rank_{rank:03d}"
    is_damaged = (folder / f"{name}.json").is_file()
    kind, message = _end(rank, ended, outcomes)
    if is_damaged and kind == "lost":
        message = f"its record {name}.json is damaged: {notes[-1]}"
    beats, bad = read_heartbeats(folder / f"{name}.progress.jsonl")
    if bad > 1:
        notes.append(f"rank {rank}: {bad} lines of its progress file cannot be read")
    last = beats[-1] if beats else None
    steps = tuple(
        StepRecord(step=beat.step, seconds=beat.seconds, loss=beat.loss, grad_norm=beat.grad_norm, ended_s=beat.ended_s)
        for beat in beats
        if beat.step is not None and beat.seconds is not None
    )
    return RankRecord(
        rank=rank,
        world_size=world_size,
        hostname="unknown",
        pid=ended.pid if ended else 0,
        finished=False,
        failure=Failure(
            kind=kind, message=message, phase=last.phase if last else None, step=last.step if last else None
        ),
        steps=steps,
        notes=(f"rebuilt from heartbeats: {'the record is damaged' if is_damaged else 'the rank left no record'}",),
    )


def _end(rank: int, ended: RankExit | None, outcomes: list[LaunchOutcome]) -> tuple[FailureKind, str]:
    """Return how a rank without a record ended. A hang is charged to the named rank, a timeout to all ranks."""
    for outcome in outcomes:
        if outcome.status == "timeout" or (outcome.status == "hang" and outcome.rank in (rank, None)):
            return ("timeout" if outcome.status == "timeout" else "hang"), outcome.reason or outcome.status
    if ended is None:
        return "lost", "left neither a record nor an exit code"
    if ended.signal:
        return "signal", ended.message or f"killed by {ended.signal}"
    return "error", ended.message or f"exit code {ended.exit_code}, and no record"


class WarmRequest(Frozen):
    """One agent to fork: ``num_ranks`` of this node, the whole ``environment``, and a ``log`` of its output."""

    arguments: tuple[str, ...]
    num_ranks: int
    environment: dict[str, str]
    log: str
    folder: str


class WarmAnswer(Frozen):
    """``ready``: all imports are done. ``started``: the agent runs as ``pid``. ``refused``: see ``reason``."""

    kind: Literal["ready", "started", "refused"]
    pid: int | None = None
    reason: str = ""
