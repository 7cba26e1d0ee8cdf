"""How a cell of a sweep ended, over all its runs, and where it ran out of memory."""

from collections.abc import Sequence

from harness.judging.oom.classify import Ending, classify, expandable_segments
from harness.judging.oom.verdict import threshold
from harness.judging.peaks import allocated, worst_rank
from harness.records.rank import RankRecord
from harness.records.run import RunRecord
from harness.records.sweeps import CellData
from harness.sweep.values import CellStatus, OomLine
from harness.units import format_bytes

# A cell that ran out of memory once cannot be relied on, whatever its other repeats did.
_WORST_FIRST: tuple[CellStatus, ...] = ("oom", "failed")


def status_of(cell: CellData) -> tuple[CellStatus, str]:
    """Status and reason. Runs that were interrupted count only where there are no others."""
    if not cell.runs:
        return ("not_run" if cell.fate == "run" else cell.fate), cell.reason
    for status in _WORST_FIRST:
        bad = next((run for run in cell.runs if run.status == status), None)
        if bad:
            return status, _ended(bad, cell)
    if any(run.status == "ok" for run in cell.runs):
        return "ok", cell.reason
    return "interrupted", cell.reason or "interrupted before its steps were done"


def _ended(run: RunRecord, cell: CellData) -> str:
    first_line = (run.failure or "no failure recorded").splitlines()[0]
    good = sum(other.status == "ok" for other in cell.runs)
    return f"{first_line} ({good} of {len(cell.runs)} runs ended well)" if good else first_line


def oom_of(runs: Sequence[RunRecord]) -> OomLine | None:
    """The first rank that ran out of memory, in the first run that did."""
    run = next((run for run in runs if run.status == "oom"), None)
    if run is None:
        return None
    rank = next((rank for rank in run.ranks if rank.failure and rank.failure.kind == "oom"), None)
    peak = worst_rank(run.ranks, run.spec.num_gpus, allocated)
    peak_bytes = peak.value if peak else None
    if rank is None or rank.failure is None:
        limit, why = run.spec.measure.memory_limit_bytes, run.failure or "no rank says where"
        return OomLine(None, None, "", None, limit, why, peak_bytes)
    return OomLine(
        rank=rank.rank,
        stage=rank.coordinates.pp,
        when=rank.failure.when,
        request_bytes=rank.failure.request_bytes,
        limit_bytes=_limit(run, rank),
        verdict=_why(run, rank),
        peak_allocated_bytes=peak_bytes,
    )


def oom_text(line: OomLine) -> str:
    """The line as a sentence: where, how much was asked for, and what the figures say."""
    asked = f", asking for {format_bytes(line.request_bytes)}" if line.request_bytes is not None else ""
    when = f" {line.when}" if line.when else ""
    where = "" if line.rank is None else f" on rank {line.rank} (stage {line.stage})"
    return f"out of memory{where}{when}{asked}: {line.verdict}"


def _limit(run: RunRecord, rank: RankRecord) -> int | None:
    if rank.memory and rank.memory.limit_bytes is not None:
        return rank.memory.limit_bytes
    if run.spec.measure.memory_limit_bytes is not None:
        return run.spec.measure.memory_limit_bytes
    return rank.memory.device_total_bytes if rank.memory else None


def _why(run: RunRecord, rank: RankRecord) -> str:
    """Model states alone, what torch's own figures say, fragmentation, or tensors: the plainest cause that is supported."""
    memory, limit = rank.memory, _limit(run, rank)
    request = rank.failure.request_bytes if rank.failure else None
    of = f" of {format_bytes(limit)}" if limit else ""
    if memory is None:
        return "the rank left no memory reading"
    if limit and (memory.static_bytes or memory.after_setup_bytes or 0) >= limit:
        return f"model states alone fill the memory{of}"
    if told := _by_text(run, rank):
        return told
    allocated, reserved = memory.max_allocated_bytes, memory.max_reserved_bytes
    if allocated is None:
        return "how much was in use is not recorded"
    spare = (reserved or 0) - allocated
    if request is not None and spare >= max(request, threshold("fragmented_share") * (limit or 0)):
        return f"fragmentation is likely: {format_bytes(spare)} reserved beside {format_bytes(allocated)} in tensors"
    return f"tensors had taken {format_bytes(allocated)}{of}"


def _by_text(run: RunRecord, rank: RankRecord) -> str | None:
    """The class by torch's message, where that has the figures of the device and is not about a limit that was asked for."""
    if rank.failure is None:
        return None
    verdict = classify(rank.failure.message, Ending(expandable_segments=expandable_segments(run)))
    if verdict.figures is None or verdict.figures.total_bytes is None or verdict.oom_class == "self_imposed_limit":
        return None
    return f"{verdict.oom_class.replace('_', ' ')} ({verdict.confidence} confidence): {verdict.reason}"
