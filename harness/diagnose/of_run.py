"""A recorded run as a case: which rank really failed, and what all of them held."""

import math
from dataclasses import replace

from harness.diagnose.values import Case, FailedRank, RankFigures, Saying
from harness.judging.derive import derive
from harness.judging.oom.classify import Ending, classify
from harness.judging.oom.verdict import OomVerdict
from harness.judging.window import is_victim
from harness.records.rank import Failure, RankRecord
from harness.records.run import RunRecord

# Strongest evidence first; a hang, a lost rank or a lost connection is mostly another rank's doing.
_KINDS = ("oom", "non_finite_loss", "signal", "error", "hang", "timeout", "lost")
_OWN_WORDS = ("oom", "non_finite_loss", "error")
_SLURM = "Slurm: "
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def case_of_run(record: RunRecord) -> Case:
    """All that the record says of its end."""
    rank = _first(record.ranks)
    metrics = derive(record) if record.status == "ok" else None
    # What a recipe sets is not known of an imported job, which others started.
    environment = record.provenance.environment | ({} if record.imported else record.spec.env)
    expandable = expandable_segments(environment, is_known=bool(environment))
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


def expandable_segments(environment: dict[str, str], *, is_known: bool) -> bool | None:
    """Whether the allocator uses them, by the older name first, as torch reads it; None where nothing is known."""
    told = next((environment[name] for name in _ALLOCATOR if name in environment), None)
    if told is None:
        return False if is_known else None
    return "expandable_segments:true" in told.replace(" ", "").lower().split(",")


def _first(ranks: tuple[RankRecord, ...]) -> RankRecord | None:
    """The rank whose failure explains the others': by kind, then by step."""
    failed = [rank for rank in ranks if rank.failure]
    return min(failed, key=_order, default=None)


def _order(rank: RankRecord) -> tuple[bool, int, float, int]:
    failure = rank.failure
    assert failure is not None
    step = failure.step if failure.step is not None else math.inf
    return is_victim(failure) and failure.kind != "oom", _KINDS.index(failure.kind), step, rank.rank


def _failed(rank: RankRecord) -> FailedRank:
    assert rank.failure is not None
    first_line = (rank.failure.message.splitlines() or [""])[0]
    where = f"ranks/rank_{rank.rank:03d}.json"
    host = "" if rank.hostname == "unknown" else rank.hostname
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
    ending = Ending(
        exit_code=_exit_code(failure),
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


def _exit_code(failure: Failure) -> int | None:
    is_kill = failure.kind == "signal" and ("SIGKILL" in failure.message or "-9" in failure.message)
    return -9 if is_kill else None


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
