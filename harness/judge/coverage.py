"""What a record covers: all ranks of a run by mbr-perf, or the part that the log of an imported run has."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

from harness.judge.readings import Window, window_of, worst_rank
from harness.records.metrics import Metrics, Peak
from harness.records.rank import RankRecord
from harness.records.run import RunRecord

NOT_LOGGED = "not in the log"


def is_whole(record: RunRecord) -> bool:
    """Return whether every rank recorded its end; a log has the steps of one rank for all."""
    ranks = record.ranks
    whole = len(ranks) >= record.spec.num_gpus and all(rank.finished for rank in ranks)
    return whole or record.imported is not None


def measured_device(record: RunRecord) -> str | None:
    """Return the product name of the device that a run was measured on; None if unknown, as of a log."""
    if record.imported is not None:
        return None
    return record.provenance.processor if record.spec.gpu_type.is_cpu else record.provenance.device_name


def covered_window(record: RunRecord, start: int, end: int) -> Window:
    """Return the step times over ``[start, end)``; of a log, those of the one rank that prints them."""
    if (log := record.imported) is None:
        return window_of(record.ranks, record.spec.num_gpus, start, end)
    clock = [rank for rank in record.ranks if rank.rank == log.clock_rank]
    return window_of(clock, 1, start, end, every=log.interval)


def covered_peak(record: RunRecord, read: Callable[[RankRecord], int | None]) -> Peak | None:
    """Return the worst rank's reading. A rank of a log is missing if no reported rank holds its part of the model.

    Both formats report one rank of each data-parallel group; the group's other ranks use as much memory.
    """
    spec, sizes = record.spec, record.spec.parallelism
    peak = worst_rank(record.ranks, spec.num_gpus, read)
    if peak is None or record.imported is None or sizes.expert_model_parallel_size > 1:
        return peak
    inner = sizes.tensor_model_parallel_size * sizes.context_parallel_size
    parts = [(rank // (inner * spec.data_parallel_size), rank % inner) for rank in range(spec.num_gpus)]
    known = {part for rank, part in enumerate(parts) if rank not in peak.missing_ranks}
    return replace(peak, missing_ranks=tuple(rank for rank in peak.missing_ranks if parts[rank] not in known))


def no_peak(record: RunRecord, name: str) -> str:
    """Say why the run has no such peak."""
    if record.imported is not None:
        return NOT_LOGGED
    if name != "peak_device_bytes":
        measured = any(rank.memory for rank in record.ranks)
        return "not measured on this device" if measured else "no rank recorded its memory"
    if record.spec.gpu_type.is_cpu:
        return "a CPU run has no device memory"
    return next((node.error for node in record.nodes if node.error), "no NVML sample for the ranks' GPUs")


@dataclass(frozen=True)
class OwnThroughput:
    """TFLOP/s/GPU of the log: median of ``n`` steps. ``change`` from mbr-perf's value, relative; None without one."""

    median: float
    n: int
    change: float | None


def own_throughput(record: RunRecord, metrics: Metrics) -> OwnThroughput | None:
    """Return the log's throughput; None for a run by mbr-perf, and if the log has none in the window."""
    logged = record.imported.throughput if record.imported else ()
    step_time, ours = metrics.step_time_s, metrics.tflops_per_gpu
    steps = range(*(step_time.window if step_time else record.spec.measure.window))
    values = [row.tflops_per_gpu for row in logged if row.step in steps]
    if not values:
        return None
    middle = median(values)
    return OwnThroughput(middle, len(values), middle / ours.median - 1 if ours else None)


def throughput_text(own: OwnThroughput) -> str:
    """``the log reports 704.00 TFLOP/s/GPU, +0.3 % from mbr-perf's value``."""
    differs = "" if own.change is None else f", {own.change * 100:+.1f} % from mbr-perf's value"
    return f"the log reports {own.median:.2f} TFLOP/s/GPU{differs}"
