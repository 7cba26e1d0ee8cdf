"""Finds figures that cannot be true: a run, golden or log with one gets no verdict and is never promoted."""

import math
from collections.abc import Iterable, Iterator, Mapping

from harness.experiment.gpu import GPUS, PRECISIONS, gpu_named
from harness.judge import readings
from harness.records.golden import GoldenRecord
from harness.records.metrics import Metrics
from harness.records.rank import RankRecord
from harness.records.run import RunRecord
from harness.units import TERA, format_bytes, format_share, grouped, ranks_text

SHORTEST_STEP_S = 1e-6  # launching a single kernel takes longer
_LARGER_CARDS = 1.5  # of a GPU's memory: some are sold with more, such as 94 and 96 GB instead of 80
_LARGEST_HOST_BYTES = 2**46  # 64 TiB; the largest servers with one memory have less


def doubts_of(record: RunRecord, metrics: Metrics) -> tuple[str, ...]:
    """Return every reason not to trust a run: its own doubts, then figures that cannot be true."""
    return tuple(dict.fromkeys((*record.suspect, *impossible(record, metrics))))


def impossible(record: RunRecord, metrics: Metrics) -> tuple[str, ...]:
    """Return the figures of a run that cannot be true, one sentence for each kind."""
    if record.status != "ok":
        return ()
    spec, mfu = record.spec, metrics.mfu
    found = grouped((what, rank.rank) for rank in record.ranks for what in _of_rank(rank, record))
    problems = [f"{ranks_text(sorted(set(ranks)))}: {what}" for what, ranks in found.items()]
    if mfu is not None and not spec.gpu_type.is_cpu and not 0 < mfu <= 1:
        problems.append(
            f"an MFU of {format_share(mfu)} of {spec.gpu}'s dense {spec.precision.peak} peak is not possible; "
            "check the recipe and the number of GPUs"
        )
    return tuple(problems)


def _of_rank(rank: RankRecord, record: RunRecord) -> Iterator[str]:
    expected, device, gpu = record.spec.num_gpus, rank.device, record.spec.gpu_type
    if rank.world_size != expected:
        yield f"world_size is {rank.world_size}, the run has {expected} GPUs"
    if not rank.finished:
        yield "did not finish (finished: false), although the run ended well"
    if not all(SHORTEST_STEP_S <= step.seconds < math.inf for step in rank.steps):
        yield "a step of less than 1 us is not possible"
    if record.imported is None and device and device.kind == "cuda" and gpu_named(device.name) is not gpu:
        yield f"ran on {device.name}, the run is of {gpu.name}"
    readers = {"allocated": readings.allocated, "reserved": readings.reserved}
    for name, read in {**readers, "device used": readings.device_used(record.nodes)}.items():
        peak, total = read(rank), rank.memory.device_total_bytes if rank.memory else None
        if peak is not None:
            yield from _of_peak(f"peak {name}", peak, gpu.name, total)


def _of_peak(name: str, peak: float, gpu: str, total_bytes: int | None = None) -> Iterator[str]:
    """Yield that a peak is not positive, or more than the device can have; it reported ``total_bytes``."""
    known = GPUS.get(gpu)
    most = total_bytes or _LARGER_CARDS * max(row.memory_bytes for row in ([known] if known else GPUS.values()))
    if known and known.is_cpu:
        most = _LARGEST_HOST_BYTES
    if not 0 < peak <= most:
        above = f"{format_bytes(peak - most)} above the {format_bytes(most)} that this device can have"
        yield f"{name} of {format_bytes(peak)} is not possible: {above if peak > 0 else 'it must be above 0'}"


def impossible_golden(golden: GoldenRecord) -> tuple[str, ...]:
    """Return which figures of a golden cannot be true, one sentence each."""
    values = {name: stored.value for name, stored in golden.metrics.items()}
    mfu, steps = values.get("mfu", 0.0), [(values.get("step_time_s"), values.get("tflops_per_gpu"))]
    peaks = {name: value for name, value in values.items() if name.startswith("peak_")}
    found = impossible_series("the golden", steps, peaks, golden.gpu, golden.compute_dtype)
    return (*found, f"the golden: an MFU of {format_share(mfu)} is not possible") if mfu > 1 else found


def impossible_series(
    whose: str, steps: Iterable[tuple[float | None, float | None]], peaks: Mapping[str, float], gpu: str, dtype: str
) -> tuple[str, ...]:
    """Return the figures of a log or of golden values that cannot be true, one sentence for each kind.

    ``steps``: seconds and TFLOP/s/GPU. ``peaks``: bytes by name. ``gpu``, ``dtype``: of the job; where one of them is
    empty or unknown, throughput is compared with the highest dense peak of all GPUs.
    """
    timed, (peak, peak_name) = [*steps], _peak_of(gpu, dtype)
    seconds, speeds = ([value for pair in timed if (value := pair[at]) is not None] for at in (0, 1))
    found = [what for name, value in peaks.items() for what in _of_peak(name, value, gpu)]
    if min(seconds, default=math.inf) < SHORTEST_STEP_S:
        found.append(f"step time of {min(seconds):g} s is not possible")
    if max(speeds, default=0.0) * TERA > peak:
        found.append(f"{max(speeds):g} TFLOP/s/GPU are above the dense {peak_name}, {peak / TERA:g} TFLOP/s")
    return tuple(f"{whose}: {what}" for what in found)


def _peak_of(gpu: str, dtype: str) -> tuple[float, str]:
    """Return FLOP/s and the name of the peak; the highest of all GPUs where one of the two is unknown."""
    known, precision = GPUS.get(gpu), PRECISIONS.get(dtype)
    if known and precision and (own := known.peak_flops.get(precision.peak)):
        return own, f"{precision.peak} peak of {gpu}"
    highest = max(flops for row in GPUS.values() for flops in row.peak_flops.values())
    return highest, "peak of any GPU that mbr-perf knows"
