"""Finds figures that cannot be true: a run or golden that has one gets no verdict and is never promoted."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.gpu import GPUS, PRECISIONS
from harness.experiment.layout import LayoutError
from harness.judging import readings
from harness.judging.metrics import Metrics
from harness.planning.model_states import least_weight_bytes
from harness.records.golden import GoldenRecord
from harness.records.rank import RankRecord
from harness.records.run import RunRecord
from harness.units import TERA, format_bytes, format_share, ranks_text

SHORTEST_STEP_S = 1e-6  # launching a single kernel takes longer
USUAL_MFU = 0.75  # published training runs on H100 reach at most 60 %
_LARGER_CARDS = 1.5  # of a GPU's memory: some are sold with more, such as 94 and 96 GB instead of 80

Readers = Mapping[str, Callable[[RankRecord], int | None]]


def doubts_of(record: RunRecord, metrics: Metrics) -> tuple[str, ...]:
    """Return every reason not to trust a run: doubts from the run itself, then figures that cannot be true.

    ``metrics``: of this run. The figures of a failed run are partial and are not checked.
    """
    return tuple(dict.fromkeys((*record.suspect, *impossible(record, metrics))))


def impossible(record: RunRecord, metrics: Metrics) -> tuple[str, ...]:
    """Return the figures of a run that cannot be true, one sentence for each kind."""
    if record.status != "ok":
        return ()
    problems: dict[str, list[int]] = {}
    for rank, what in (*_of_ranks(record), *_of_peaks(record)):
        problems.setdefault(what, []).append(rank)
    return (
        *(f"{ranks_text(sorted(set(ranks)))}: {what}" for what, ranks in problems.items()),
        *_too_fast(record, metrics),
    )


def remarkable(record: RunRecord, metrics: Metrics) -> tuple[str, ...]:
    """Return a note for a model FLOPs utilization that is possible and very unusual; empty for CPU runs."""
    if metrics.mfu is None or record.spec.gpu_type.is_cpu or not USUAL_MFU < metrics.mfu <= 1:
        return ()
    return (
        f"an MFU of {format_share(metrics.mfu)} is unusually high: check that the recipe and the number of GPUs are those "
        "of this job",
    )


def impossible_golden(golden: GoldenRecord) -> tuple[str, ...]:
    """Return which figures of a golden cannot be true, one sentence each; empty on a CPU and for an unknown GPU."""
    gpu, precision = GPUS.get(golden.gpu), PRECISIONS.get(golden.compute_dtype)
    if gpu is None or precision is None or gpu.is_cpu:
        return ()
    values = {name: stored.value for name, stored in golden.metrics.items()}
    speed, peak, found = values.get("tflops_per_gpu", 0.0), gpu.peak_flops.get(precision.peak), []
    if peak is not None and speed * TERA > peak:
        found.append(
            f"{speed:g} TFLOP/s/GPU are above the dense {precision.peak} peak of {gpu.name}, {peak / TERA:g} TFLOP/s"
        )
    if (step := values.get("step_time_s", 1.0)) < SHORTEST_STEP_S:
        found.append(f"step time of {step:g} s is not possible")
    most = _LARGER_CARDS * gpu.memory_bytes
    found += [
        f"{name} of {format_bytes(round(value))} is more than the memory of {gpu.name}, {format_bytes(gpu.memory_bytes)}"
        for name, value in values.items()
        if name.startswith("peak_") and value > most
    ]
    return tuple(f"the golden's {what}" for what in found)


def impossible_series(
    whose: str, steps: Iterable[tuple[float | None, float | None]], peaks: Mapping[str, int], gpu: str, dtype: str
) -> tuple[str, ...]:
    """Return the figures of a log or of foreign golden values that cannot be true, one sentence for each kind.

    ``steps``: seconds and TFLOP/s/GPU. ``peaks``: bytes by name. ``gpu``, ``dtype``: of the job; where one of them is empty or
    unknown, throughput is compared with the highest dense peak of all GPUs.
    """
    timed = [*steps]
    seconds, speeds = ([value for pair in timed if (value := pair[i]) is not None] for i in (0, 1))
    known, precision = GPUS.get(gpu), PRECISIONS.get(dtype)
    peak = known.peak_flops.get(precision.peak) if known and precision else None
    of = f"the dense peak of {gpu} in {dtype}" if peak else "the dense peak of every GPU that mbr-perf knows"
    peak = peak or max(flops for row in GPUS.values() for flops in row.peak_flops.values())
    found = []
    if any(value < SHORTEST_STEP_S for value in seconds):
        found.append(f"an iteration of {min(seconds):g} s is not possible")
    if any(value * TERA > peak for value in speeds):
        found.append(f"{max(speeds):g} TFLOP/s/GPU are above {of}, {peak / TERA:g} TFLOP/s")
    rows = [known] if known else [row for row in GPUS.values() if not row.is_cpu]
    most = math.inf if rows[0].is_cpu else _LARGER_CARDS * max(row.memory_bytes for row in rows)
    found += [f"{name} of {size} bytes is not possible" for name, size in peaks.items() if size <= 0]
    found += [
        f"{name} of {format_bytes(size)} is more than any {gpu or 'GPU'} has"
        for name, size in peaks.items()
        if size > most
    ]
    return tuple(f"{whose}: {what}" for what in found)


def _of_ranks(record: RunRecord) -> Iterator[tuple[int, str]]:
    """Yield contradictions in the ranks' records, with the rank."""
    expected, held = record.spec.num_gpus, Counter(rank.rank for rank in record.ranks)
    stages = record.spec.parallelism.pipeline_model_parallel_size
    for rank in record.ranks:
        if held[rank.rank] > 1:
            yield rank.rank, f"recorded {held[rank.rank]} times"
        if not 0 <= rank.rank < expected:
            yield rank.rank, f"no such rank in a run of {expected} GPUs"
        if not 0 <= rank.coordinates.pp < stages:
            yield rank.rank, f"pipeline stage {rank.coordinates.pp} of {stages}"
        if rank.world_size != expected:
            yield rank.rank, f"world_size is {rank.world_size}, the run has {expected} GPUs"
        if not rank.finished:
            yield rank.rank, "did not finish (finished: false), although the run ended well"
        yield from ((rank.rank, what) for what in _of_steps(rank))


def _of_steps(rank: RankRecord) -> Iterator[str]:
    repeated = [step for step, times in Counter(step.step for step in rank.steps).items() if times > 1]
    if repeated:
        yield f"step {min(repeated)} is recorded more than once"
    if any(step.seconds < SHORTEST_STEP_S for step in rank.steps):
        yield "a step of less than 1 us is not possible"


def _of_peaks(record: RunRecord) -> Iterator[tuple[int, str]]:
    """Yield peaks that no rank of these settings can have, with the rank."""
    readers: Readers = {
        "allocated": readings.allocated,
        "reserved": readings.reserved,
        "device used": readings.device_used(record.nodes),
    }
    least, gpu = _least_by_stage(record.spec), record.spec.gpu_type
    for rank in record.ranks:
        stage = rank.coordinates.pp
        weights = least[stage] if 0 <= stage < len(least) else 0.0
        there = (rank.memory.device_total_bytes if rank.memory else None) or round(_LARGER_CARDS * gpu.memory_bytes)
        for name, read in readers.items():
            peak = read(rank)
            if peak is not None and peak <= 0:
                yield rank.rank, f"peak {name} is {peak} bytes"
            elif peak is not None and peak > there and not gpu.is_cpu:
                yield (
                    rank.rank,
                    f"peak {name} of {format_bytes(peak)} is more than the device has, {format_bytes(there)}",
                )
            elif peak is not None and peak < weights:
                yield (
                    rank.rank,
                    f"peak {name} of {format_bytes(peak)} is less than the rank's parameters, which have at least "
                    f"{format_bytes(weights)}",
                )


def _least_by_stage(spec: ExperimentSpec) -> tuple[float, ...]:
    try:
        return least_weight_bytes(spec)
    except LayoutError:  # a rule reports it; an imported job may have been cut otherwise
        return ()


def _too_fast(record: RunRecord, metrics: Metrics) -> Iterable[str]:
    spec = record.spec
    if spec.gpu_type.is_cpu or metrics.mfu is None or metrics.mfu <= 1 or not math.isfinite(metrics.mfu):
        return ()
    return (
        f"an MFU of {format_share(metrics.mfu)} is not possible: the model FLOPs of a step are more than "
        f"{spec.gpu_type.name} can do in that time at its dense {spec.precision.peak} peak; check the recipe and the number of GPUs",
    )
