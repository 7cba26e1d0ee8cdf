"""Run folders without a record: their ranks' own words, how far each came, and what became of mbr-perf itself."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from harness.diagnose.of_run import case_of_run
from harness.diagnose.values import Case
from harness.errors import BadRequestError
from harness.experiment.effective import effective_recompute, settled_implementation
from harness.experiment.experiment import ExperimentSpec
from harness.judging.oom.verdict import OomVerdict
from harness.judging.window import is_victim
from harness.launch.environment import Host
from harness.launch.processes import Life, life_of, owner_of, started_at
from harness.records.collect import AgentRecord, Collected, LaunchOutcome, collect, read_heartbeats
from harness.records.launch import signal_name
from harness.records.rank import OWNER, Heartbeat, RankRecord
from harness.records.run import RunRecord
from harness.records.strict_json import read_document
from harness.run.launched import placed
from harness.run.machine import software_for
from harness.run.provenance import Clock, provenance
from harness.run.ranks import status_of

_MOST_GROUPS = 8
_UNSPOKEN = ("lost", "hang", "timeout")


def case_of_unfinished(folder: Path, spec: ExperimentSpec, heard: Case | None, host: Host) -> Case:
    """The run as far as it came; ``heard``: what its logs say. BadRequestError where nothing of it has begun.

    Strongest first: a rank's own words, an error in the logs, the end of mbr-perf itself.
    """
    has_begun = (folder / OWNER).is_file() or any((folder / "ranks").glob("rank_*"))
    if not has_begun and heard is None:
        raise BadRequestError(f"{folder}: neither a record nor logs", remedy="the run has not begun, or was not run")
    if not has_begun and heard is not None:
        return replace(heard, name=folder.name)
    collected = collect(folder, spec.num_gpus)
    ranks = placed(collected.ranks, spec)
    case = case_of_run(_record(folder, spec, ranks, collected, host))
    life = life_of(folder)
    notes = (_how_far(folder, ranks, spec), *_agents(folder))
    if any(_spoke(rank) for rank in ranks):
        return replace(case, notes=(f"No record was committed: {life.reason}.", *notes))
    if heard is not None and (heard.has_oom or (heard.failed and heard.failed.kind != "peer")):
        return replace(heard, name=folder.name, notes=(*notes, *heard.notes))
    return replace(
        case,
        status="failed" if life.state == "dead" else "unknown",
        verdict=_verdict(folder, life),
        failed=None,
        sayings=(),
        notes=notes,
    )


def _spoke(rank: RankRecord) -> bool:
    return rank.failure is not None and rank.failure.kind not in _UNSPOKEN and not is_victim(rank.failure)


def _verdict(folder: Path, life: Life) -> OomVerdict:
    if life.state == "alive":
        return OomVerdict("not_oom", "low", f"the run is still going: {life.reason}")
    if life.state == "unknown":
        return OomVerdict("not_oom", "low", f"no record, and whether mbr-perf still runs is not known: {life.reason}")
    owner = owner_of(folder)
    assert owner is not None
    since = started_at(owner)
    started = f", started {_clock(since)}" if since is not None else ""
    who = f"process {owner.pid} of {owner.hostname}{started}"
    how = life.reason if since is None else "it is gone"
    return OomVerdict("killed", "high", f"mbr-perf itself was killed ({who}): {how}, and it wrote no record")


def _how_far(folder: Path, ranks: Sequence[RankRecord], spec: ExperimentSpec) -> str:
    """Every rank, those that came equally far together: ``ranks 0, 1: step 3 of 40 ended, then nothing``."""
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        groups.setdefault(_end(rank, spec), []).append(rank.rank)
    told = [f"{_names(numbers)}: {end}" for end, numbers in groups.items()]
    more = f"; and {len(told) - _MOST_GROUPS} more" if len(told) > _MOST_GROUPS else ""
    last = max((beat.time_s for rank in ranks for beat in _beats(folder, rank)), default=None)
    sign = f". Last sign of life: {_clock(last)}" if last is not None else ""
    return f"{'; '.join(told[:_MOST_GROUPS])}{more}{sign}."


def _end(rank: RankRecord, spec: ExperimentSpec) -> str:
    came = f"step {rank.steps[-1].step + 1} of {spec.measure.max_steps}" if rank.steps else ""
    if rank.failure is None:
        return f"{came or 'no step'}, and ended well"
    if rank.failure.kind in _UNSPOKEN:
        phase = f"began {rank.failure.phase}" if rank.failure.phase else "no sign of life"
        return f"finished {came}, then silent" if came else f"{phase}, no step" if rank.failure.phase else phase
    return f"{came or 'no step'}, then {rank.failure.kind}"


def _names(numbers: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0 to 7``, ``ranks 0, 2``."""
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 2:
        return f"ranks {numbers[0]} to {numbers[-1]}"
    return f"ranks {', '.join(map(str, numbers[:8]))}{' ...' if len(numbers) > 8 else ''}"


def _beats(folder: Path, rank: RankRecord) -> Sequence[Heartbeat]:
    return read_heartbeats(folder / "ranks" / f"rank_{rank.rank:03d}.progress.jsonl")[0][-1:]


def _agents(folder: Path) -> list[str]:
    """What torchrun's agents wrote when mbr-perf was gone: they end, and their ranks with them."""
    told = []
    for path in sorted((folder / "ranks").glob("launch*.json")):
        agent = read_document(path, AgentRecord)
        by = f" by {signal_name(agent.signal)}, and its ranks with it," if agent.signal else ""
        told.append(f"torchrun on node {agent.node_rank} ended{by} after {agent.seconds:.0f} s (ranks/{path.name}).")
    return told


def _clock(time_s: float) -> str:
    return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _record(
    folder: Path, spec: ExperimentSpec, ranks: tuple[RankRecord, ...], collected: Collected, host: Host
) -> RunRecord:
    """As the run would have been committed now; nothing is written."""
    status, failure = status_of(LaunchOutcome(status="failed", reason="no record was committed"), ranks)
    effective = effective_recompute(spec, settled_implementation(spec), software_for(spec.gpu, host)[0])
    return RunRecord(
        run_id=folder.name,
        status=status,
        spec=spec,
        fingerprint=spec.fingerprint,
        effective=effective,
        ranks=ranks,
        nodes=collected.nodes,
        failure=failure,
        no_prediction="the run was not committed",
        provenance=provenance(Clock.start(), None, ranks, collected.nodes, host),
    )
