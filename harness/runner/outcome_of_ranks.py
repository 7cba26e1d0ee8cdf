"""What the ranks' records and the launch say together: status, the first real failure, doubts."""

from collections import Counter
from collections.abc import Iterable

from harness.analysis.peaks import bare_uuid
from harness.analysis.victims import is_victim
from harness.records.launch import LaunchOutcome
from harness.records.rank import Failure, RankRecord
from harness.records.run import NodeSample, Status
from harness.spec.effective import EffectiveRecompute
from harness.spec.experiment import ExperimentSpec
from harness.units import format_bytes

# A rank that lost its peers reports a connection error; the cause is the rank with the strongest evidence.
_STRENGTH = ("oom", "non_finite_loss", "signal", "hang", "timeout", "error", "lost")


def status_of(outcome: LaunchOutcome, ranks: tuple[RankRecord, ...]) -> tuple[Status, str | None]:
    """How the run ended and, if badly, one sentence: rank, stage, phase, step, cause."""
    culprit = _culprit(ranks)
    if outcome.status == "interrupted":
        return "interrupted", outcome.reason
    if culprit is not None and culprit.failure is not None and not _launch_knows_more(outcome, culprit.failure):
        sentence = _sentence(culprit, culprit.failure)
        full = "disk full; " if outcome.disk_full else ""
        return ("oom" if culprit.failure.kind == "oom" else "failed"), full + sentence
    if outcome.status != "ok":
        return "failed", outcome.reason or outcome.status
    return "ok", None


def _launch_knows_more(outcome: LaunchOutcome, failure: Failure) -> bool:
    """Whether no rank left a trace of its end, as when torchrun could not start any, or died itself."""
    return failure.kind == "lost" and outcome.status != "ok" and outcome.reason is not None


def _culprit(ranks: tuple[RankRecord, ...]) -> RankRecord | None:
    failed = [rank for rank in ranks if rank.failure]
    return min(failed, key=_rank_of_evidence) if failed else None


def _rank_of_evidence(rank: RankRecord) -> tuple[bool, int, int]:
    failure = rank.failure
    assert failure is not None
    return is_victim(failure), _STRENGTH.index(failure.kind), rank.rank


def _sentence(rank: RankRecord, failure: Failure) -> str:
    where = f"rank {rank.rank} (stage {rank.coordinates.pp})"
    when = f" {failure.when}" if failure.when else ""
    if failure.kind == "oom":
        asking = f", asking for {format_bytes(failure.request_bytes)}" if failure.request_bytes else ""
        return f"{where} ran out of memory{when}{asking}: {_first_line(failure.message)}"
    return f"{where} failed{when}: {_first_line(failure.message)}"


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:300] if text.strip() else "no message"


def doubts(nodes: Iterable[NodeSample], ranks: tuple[RankRecord, ...]) -> tuple[str, ...]:
    """Reasons not to trust the timing of a run: throttled clocks, other processes on its GPUs, GPUs lost on the way.

    The sampler sees every GPU of a node; those that no rank ran on are somebody else's affair.
    """
    own = {bare_uuid(rank.device.uuid) for rank in ranks if rank.device and rank.device.uuid}
    found = []
    for node in nodes:
        for device in node.devices:
            if bare_uuid(device.uuid) not in own:
                continue
            name = f"GPU {device.index} of {node.hostname}"
            if device.throttle_reasons:
                found.append(f"{name} was throttled: {', '.join(device.throttle_reasons)}")
            if device.foreign_processes:
                found.append(f"{name} was shared with {', '.join(device.foreign_processes)}")
            if device.error and device.num_samples:  # one that NVML never showed is a figure unknown, and no doubt
                found.append(f"{name} was not watched to the end: {device.error}")
    return tuple(found)


def recorded_throughout(spec: ExperimentSpec) -> tuple[str, ...]:
    """The reason not to trust the timing of a run whose allocations were recorded while it was measured."""
    if not spec.measure.snapshot_on_oom:
        return ()
    return ("--snapshot_on_oom recorded every allocation during the measured steps, which slows them",)


def built_otherwise(expected: EffectiveRecompute, ranks: tuple[RankRecord, ...]) -> str | None:
    """One sentence when the built layers do not recompute what was expected; None when they do, or nobody could say.

    One rank of every pipeline stage is asked: the others of a stage hold the same layers.
    """
    stages = [r.recompute for r in ranks if r.recompute and _holds_first_copy(r)]
    if not stages or any(rank.recompute is None for rank in ranks):
        return None
    built: Counter[str] = Counter()
    for layers in stages:
        built.update(layers.modules)
    full = sum(layers.full_layers for layers in stages)
    acting = set(built) == set(expected.modules)
    if acting and full == expected.full_layers:
        return None
    return (
        f"the built layers recompute {dict(built) or full or 'nothing'}, "
        f"expected {expected.modules or expected.full_layers or 'nothing'}"
    )


def _holds_first_copy(rank: RankRecord) -> bool:
    place = rank.coordinates
    return (place.tp, place.dp, place.cp) == (0, 0, 0)
