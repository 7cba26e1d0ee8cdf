"""What a record covers: all ranks of a run by mbr-perf, or the part that the log of an imported run has."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

from harness.judge.readings import Window, window_of, worst_rank
from harness.records.metrics import Metrics, Peak
from harness.records.rank import RankRecord
from harness.records.run import ImportedLog, RunRecord


@dataclass(frozen=True)
class Coverage:
    """A run by mbr-perf: every rank must have recorded every step and its memory. ``unknown``: of absent software."""

    record: RunRecord
    unknown: str | None = None

    @property
    def is_whole(self) -> bool:
        ranks = self.record.ranks
        return len(ranks) >= self.record.spec.num_gpus and all(rank.finished for rank in ranks)

    @property
    def device_name(self) -> str | None:
        where = self.record.provenance
        return where.processor if self.record.spec.gpu_type.is_cpu else where.device_name

    def window(self, start: int, end: int) -> Window:
        """Return the step times over ``[start, end)``."""
        return window_of(self.record.ranks, self.record.spec.num_gpus, start, end)

    def peak(self, read: Callable[[RankRecord], int | None]) -> Peak | None:
        """Return the worst rank's reading."""
        return worst_rank(self.record.ranks, self.record.spec.num_gpus, read)

    def no_peak(self, name: str) -> str:
        """Say why the run has no such peak."""
        record = self.record
        if self.unknown:
            return self.unknown
        if name != "peak_device_bytes":
            measured = any(rank.memory for rank in record.ranks)
            return "not measured on this device" if measured else "no rank recorded its memory"
        if record.spec.gpu_type.is_cpu:
            return "a CPU run has no device memory"
        return next((node.error for node in record.nodes if node.error), "no NVML sample for the ranks' GPUs")


@dataclass(frozen=True)
class LogCoverage(Coverage):
    """An imported run: its log has the step times of one rank, and the memory of some ranks."""

    unknown: str | None = "not in the log"
    is_whole = True
    device_name = None

    @property
    def _log(self) -> ImportedLog:
        assert self.record.imported is not None
        return self.record.imported

    def window(self, start: int, end: int) -> Window:
        """Return the times of one rank: an iteration ends at the same time for all ranks.

        If a line covers several iterations, it counts only if all of them are in the window.
        """
        clock = [rank for rank in self.record.ranks if rank.rank == self._log.clock_rank]
        return window_of(clock, 1, start, end, every=self._log.interval)

    def peak(self, read: Callable[[RankRecord], int | None]) -> Peak | None:
        """Return the worst rank's reading. A rank is missing only if no reported rank holds the same part of the model.

        Both formats report one rank of each data-parallel group; the group's other ranks use as much memory.
        """
        peak, spec = super().peak(read), self.record.spec
        sizes = spec.parallelism
        if peak is None or sizes.expert_model_parallel_size > 1:
            return peak
        inner = sizes.tensor_model_parallel_size * sizes.context_parallel_size
        parts = [(rank // (inner * spec.data_parallel_size), rank % inner) for rank in range(spec.num_gpus)]
        known = {part for rank, part in enumerate(parts) if rank not in peak.missing_ranks}
        return replace(peak, missing_ranks=tuple(rank for rank in peak.missing_ranks if parts[rank] not in known))


def coverage_of(record: RunRecord) -> Coverage:
    """Return the coverage for this kind of record."""
    return Coverage(record) if record.imported is None else LogCoverage(record)


def measured_device(record: RunRecord) -> str | None:
    """Return the product name of the device that a run was measured on; None if unknown."""
    return coverage_of(record).device_name


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
