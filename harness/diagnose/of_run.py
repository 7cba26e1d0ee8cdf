"""A run as a case: which rank really failed, and what all of them held; without a record, how far it came."""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from harness.diagnose.values import Case, FailedRank, RankFigures, Saying, Status
from harness.errors import BadRequestError
from harness.experiment.effective import effective_recompute, settled_implementation
from harness.experiment.experiment import ExperimentSpec
from harness.judging.derive import derive
from harness.judging.oom.classify import Ending, classify, expandable_segments
from harness.judging.oom.verdict import OomVerdict
from harness.judging.readings import is_victim
from harness.launch.environment import Host
from harness.launch.processes import Life, life_of, owner_of, started_at
from harness.records.collect import AgentRecord, Collected, LaunchOutcome, collect, read_heartbeats
from harness.records.launch import signal_name
from harness.records.rank import OWNER, Failure, RankRecord
from harness.records.run import RunRecord
from harness.records.strict_json import read_document
from harness.run.launched import placed
from harness.run.machine import software_for
from harness.run.provenance import Clock, provenance
from harness.run.ranks import status_of

# Strongest evidence first; a hang, a lost rank or a lost connection is mostly another rank's doing.
_KINDS = ("oom", "non_finite_loss", "signal", "error", "hang", "timeout", "lost")
_OWN_WORDS = ("oom", "non_finite_loss", "error")
_SLURM = "Slurm: "
_MOST_GROUPS = 8
_UNSPOKEN = ("lost", "hang", "timeout")


def case_of_run(record: RunRecord) -> Case:
    """All that the record says of its end."""
    rank = min((rank for rank in record.ranks if rank.failure), key=_order, default=None)
    metrics = derive(record) if record.status == "ok" else None
    # What a recipe sets is not known of an imported job, which others started.
    environment = record.provenance.environment | ({} if record.imported else record.spec.env)
    expandable = expandable_segments(environment)
    if expandable is None and environment:
        expandable = False
    return Case(
        name=record.run_id,
        origin="run",
        status=record.status,
        verdict=_slurms_word(record, rank) or _verdict(record, rank, expandable_segments=expandable),
        failed=_failed(rank) if rank else None,
        spec=record.spec,
        ranks=tuple(_figures(rank) for rank in record.ranks),
        prediction=record.prediction,
        no_prediction=record.no_prediction,
        tflops_per_gpu=metrics.tflops_per_gpu.median if metrics and metrics.tflops_per_gpu else None,
        step_time_s=metrics.step_time_s.median if metrics and metrics.step_time_s else None,
        has_nan=_has_nan(record),
        expandable_segments=expandable,
        sayings=tuple(_sayings(record)),
        sources=tuple(record.sources.items()),
        notes=record.suspect,
        retried=any(rank.memory and rank.memory.num_alloc_retries for rank in record.ranks),
        is_told=record.imported is not None,
        forced=tuple(finding.id for finding in record.findings if finding.overridden),
    )


def _order(rank: RankRecord) -> tuple[bool, int, float, int]:
    """The rank whose failure explains the others' comes first: by kind, then by step."""
    failure = rank.failure
    assert failure is not None
    step = failure.step if failure.step is not None else math.inf
    return is_victim(failure) and failure.kind != "oom", _KINDS.index(failure.kind), step, rank.rank


def _failed(rank: RankRecord) -> FailedRank:
    assert rank.failure is not None
    first_line = (rank.failure.message.splitlines() or [""])[0]
    host = "" if rank.hostname == "unknown" else rank.hostname
    where = f"ranks/rank_{rank.rank:03d}.json"
    return FailedRank(rank.rank, rank.failure.kind, first_line, rank.failure.when, where, host)


def _verdict(record: RunRecord, rank: RankRecord | None, *, expandable_segments: bool | None) -> OomVerdict:
    """The class of the failure's text; a rank that says "oom" in words nobody knows ran out of memory all the same."""
    failure = rank.failure if rank else None
    if failure is None:
        told = record.failure or ""
        if record.status == "ok":
            return OomVerdict("not_oom", "high", "the run ended well")
        return classify(told, Ending(expandable_segments=expandable_segments))
    gpu = record.spec.gpu_type
    is_kill = failure.kind == "signal" and ("SIGKILL" in failure.message or "-9" in failure.message)
    ending = Ending(
        exit_code=-9 if is_kill else None,
        expandable_segments=expandable_segments,
        device_bytes=None if gpu.is_cpu else gpu.memory_bytes,
        has_traceback=failure.kind == "error",
    )
    found = classify(failure.message, ending)
    if failure.kind != "oom":
        plain = replace(found, confidence="high", reason=f"{failure.kind}: {_line(failure)}")
        return plain if found.oom_class == "not_oom" else found
    if record.spec.measure.memory_limit_bytes is not None and found.oom_class in ("not_oom", "capacity"):
        return OomVerdict("self_imposed_limit", "high", _line(failure), failure.request_bytes, found.figures)
    if found.oom_class != "not_oom":
        return found
    return OomVerdict("capacity", "low", f"the rank says no more than: {_line(failure)}", failure.request_bytes)


def _slurms_word(record: RunRecord, rank: RankRecord | None) -> OomVerdict | None:
    """What Slurm said where it ended the run; None where a rank failed by itself before, or where Slurm had no part in it."""
    if not (record.failure or "").startswith(_SLURM):
        return None
    failure = rank.failure if rank else None
    if failure is not None and failure.kind in _OWN_WORDS and not is_victim(failure):
        return None
    found = classify(record.failure or "")
    if found.oom_class == "not_oom" and not found.advice:
        return None
    return replace(found, reason=(record.failure or "").splitlines()[0][:300])


def _line(failure: Failure) -> str:
    return (failure.message.splitlines() or ["nothing was said"])[0][:300]


def _figures(rank: RankRecord) -> RankFigures:
    memory = rank.memory
    return RankFigures(
        rank.rank,
        rank.coordinates.pp,
        memory.max_allocated_bytes if memory else None,
        memory.max_reserved_bytes if memory else None,
        has_oom=rank.failure is not None and rank.failure.kind == "oom",
    )


def _has_nan(record: RunRecord) -> bool:
    steps = (step for rank in record.ranks for step in rank.steps)
    told = any(rank.failure and rank.failure.kind == "non_finite_loss" for rank in record.ranks)
    return told or any(step.loss is not None and not math.isfinite(step.loss) for step in steps)


def _sayings(record: RunRecord) -> list[Saying]:
    """The last lines of what failed ranks said."""
    found = [Saying(record.failure, record.run_id)] if record.failure else []
    for rank in record.ranks:
        if rank.failure:
            texts = [*rank.failure.message.splitlines(), *(rank.failure.traceback or "").splitlines()[-3:]]
            found += [Saying(text, f"rank {rank.rank}") for text in dict.fromkeys(texts) if text.strip()]
    return found


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
    failures = [rank.failure for rank in ranks if rank.failure]
    if any(failure.kind not in _UNSPOKEN and not is_victim(failure) for failure in failures):
        return replace(case, notes=(f"No record was committed: {life.reason}.", *notes))
    if heard is not None and (heard.has_oom or (heard.failed and heard.failed.kind != "peer")):
        return replace(heard, name=folder.name, notes=(*notes, *heard.notes))
    status: Status = "failed" if life.state == "dead" else "unknown"
    return replace(case, status=status, verdict=_by_life(folder, life), failed=None, sayings=(), notes=notes)


def _by_life(folder: Path, life: Life) -> OomVerdict:
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
    files = [folder / "ranks" / f"rank_{rank.rank:03d}.progress.jsonl" for rank in ranks]
    last = max((beat.time_s for file in files for beat in read_heartbeats(file)[0][-1:]), default=None)
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
