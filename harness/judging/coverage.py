"""What the record of a run covers: all ranks of a run of ours, and of an imported one what its log tells."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.judging import statistics
from harness.judging.metrics import Metrics
from harness.judging.readings import Peak, Window, window_of, worst_rank
from harness.records.rank import RankRecord
from harness.records.run import ImportedLog, RunRecord

_EQUAL = 0.0005  # what is printed with one decimal of a percent


@dataclass(frozen=True)
class Coverage:
    """A run of ours: every rank has to have recorded every step and its memory. ``unknown``: stands for absent software."""

    record: RunRecord
    unknown: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all ranks that are to speak of the run finished."""
        ranks = self.record.ranks
        return len(ranks) >= self.record.spec.num_gpus and all(rank.finished for rank in ranks)

    @property
    def device_name(self) -> str | None:
        """Product name of what it was measured on: the GPU's, or for a CPU run the processor's."""
        where = self.record.provenance
        return where.processor if self.record.spec.gpu_type.is_cpu else where.device_name

    def window(self, start: int, end: int) -> Window:
        """Step times over ``[start, end)``."""
        return window_of(self.record.ranks, self.record.spec.num_gpus, start, end)

    def peak(self, read: Callable[[RankRecord], int | None]) -> Peak | None:
        """The worst rank's reading."""
        return worst_rank(self.record.ranks, self.record.spec.num_gpus, read)

    def no_peak(self, name: str) -> str:
        """Why the run has no such peak."""
        record = self.record
        if name != "peak_device_bytes":
            measured = any(rank.memory for rank in record.ranks)
            return "the run's memory meter cannot say" if measured else "no rank left a memory reading"
        if record.spec.gpu_type.is_cpu:
            return "a CPU run has no device memory"
        return next((node.error for node in record.nodes if node.error), "no NVML sample for the ranks' GPUs")

    def missing(self, peak: Peak) -> str:
        """Who has no reading of a peak."""
        return f"rank {', '.join(map(str, peak.missing_ranks))}"


@dataclass(frozen=True)
class LogCoverage(Coverage):
    """An imported run: its log tells the clock of one rank, and the memory of some."""

    unknown: str | None = "not told by the log"
    is_whole = True
    device_name = None

    @property
    def _log(self) -> ImportedLog:
        assert self.record.imported is not None
        return self.record.imported

    def window(self, start: int, end: int) -> Window:
        """An iteration ends for all ranks at once, so that one rank's times are the job's.

        Of a log that has a line every few iterations, those lines count whose iterations all lie in the window.
        """
        clock = [rank for rank in self.record.ranks if rank.rank == self._log.clock_rank]
        return window_of(clock, 1, start, end, every=self._log.interval)

    def peak(self, read: Callable[[RankRecord], int | None]) -> Peak | None:
        """Only those ranks are missing that hold another part of the model than any rank that was read.

        Both formats report one rank of every group that holds the same part; its data-parallel copies hold as much.
        """
        peak, spec = super().peak(read), self.record.spec
        sizes = spec.parallelism
        if peak is None or sizes.expert_model_parallel_size > 1:
            return peak
        inner = sizes.tensor_model_parallel_size * sizes.context_parallel_size
        parts = [(rank // (inner * spec.data_parallel_size), rank % inner) for rank in range(spec.num_gpus)]
        known = {part for rank, part in enumerate(parts) if rank not in peak.missing_ranks}
        return replace(peak, missing_ranks=tuple(rank for rank in peak.missing_ranks if parts[rank] not in known))

    def no_peak(self, name: str) -> str:
        """The same for all of them."""
        del name
        return "the log does not say"

    def missing(self, peak: Peak) -> str:
        """All that it has no memory of, as the notes of the record count them."""
        unread = self.record.spec.num_gpus - sum(rank.memory is not None for rank in self.record.ranks)
        copies = unread - len(peak.missing_ranks)
        told = f" (copies of ranks with one: {copies})" if copies > 0 else ""
        return f"{unread} of {self.record.spec.num_gpus} ranks{told}"


def coverage_of(record: RunRecord) -> Coverage:
    """What the record covers."""
    return Coverage(record) if record.imported is None else LogCoverage(record)


def measured_device(record: RunRecord) -> str | None:
    """Product name of what a run was measured on; None where nobody tells."""
    return coverage_of(record).device_name


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
