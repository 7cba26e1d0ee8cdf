"""The figures of an imported run: which steps count, whose memory is known, and the log's own throughput beside ours."""

from dataclasses import dataclass, replace

from harness.judging import statistics
from harness.judging.metrics import Metrics
from harness.judging.peaks import Peak
from harness.judging.window import Window, window_of
from harness.records.run import ImportedLog, RunRecord

_EQUAL = 0.0005  # what is printed with one decimal of a percent


def job_window(record: RunRecord, imported: ImportedLog, start: int, end: int) -> Window:
    """Step times over ``[start, end)``: an iteration ends for all ranks at once, so that one rank's times are the job's.

    Of a log that has a line every few iterations, those lines count whose iterations all lie in the window.
    """
    clock = [rank for rank in record.ranks if rank.rank == imported.clock_rank]
    return window_of(clock, 1, start, end, every=imported.interval)


def without_copies(record: RunRecord, peak: Peak | None) -> Peak | None:
    """``peak`` with only those ranks missing that hold another part of the model than any rank that was read.

    Both formats report one rank of every group that holds the same part; its data-parallel copies hold as much.
    """
    if peak is None or record.imported is None:
        return peak
    spec = record.spec
    p = spec.parallelism
    inner = p.tensor_model_parallel_size * p.context_parallel_size
    per_stage = inner * spec.data_parallel_size
    if p.expert_model_parallel_size > 1:
        return peak

    def part(rank: int) -> tuple[int, int]:
        return rank // per_stage, rank % inner

    known = {part(rank) for rank in range(spec.num_gpus) if rank not in peak.missing_ranks}
    return replace(peak, missing_ranks=tuple(rank for rank in peak.missing_ranks if part(rank) not in known))


@dataclass(frozen=True)
class OwnThroughput:
    """TFLOP/s/GPU as the log has it, the median over the ``n`` steps of the window that have one.

    ``change``: the log's over ours, less one; None where ours is not known.
    """

    median: float
    n: int
    change: float | None


def own_throughput(record: RunRecord, metrics: Metrics) -> OwnThroughput | None:
    """None for a run of our own, and where the log has none in the window."""
    if record.imported is None:
        return None
    start, end = metrics.step_time_s.window if metrics.step_time_s else record.spec.measure.window
    values = [one.tflops_per_gpu for one in record.imported.throughput if start <= one.step < end]
    if not values:
        return None
    median, ours = statistics.median(values), metrics.tflops_per_gpu
    return OwnThroughput(median, len(values), median / ours.median - 1 if ours else None)


def throughput_text(record: RunRecord, metrics: Metrics) -> str | None:
    """``the log's own throughput is 704.00 TFLOP/s/GPU, +0.3 % from ours``; None where the log has none."""
    own = own_throughput(record, metrics)
    if own is None:
        return None
    told = f"the log's own throughput is {own.median:.2f} TFLOP/s/GPU"
    if own.change is None:
        return told
    differs = f"{own.change * 100:+.1f} % from" if abs(own.change) >= _EQUAL else "equal to"
    return f"{told}, {differs} ours ({metrics.formula_version})"
