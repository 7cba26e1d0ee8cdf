"""Finds figures of a run that cannot be true: such a run gets no verdict and is never promoted."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.layout import LayoutError
from harness.judging import readings
from harness.judging.metrics import Metrics
from harness.planning.model_states import least_weight_bytes
from harness.records.rank import Coordinates, MemoryRecord, RankRecord
from harness.records.run import REPLAYED, RunRecord
from harness.units import format_bytes, format_seconds, format_share, ranks_text

SHORTEST_STEP_S = 1e-6  # launching a single kernel takes longer
USUAL_MFU = 0.75  # published training runs on H100 reach at most 60 %
LARGER_CARDS = 1.5  # of a GPU's memory: some are sold with more, such as 94 and 96 GB instead of 80
ROUNDED = 0.99  # logs round bytes to MB or GB, so that the larger of two figures may look smaller by so much
_LEAST_OF_STAGE = 0.5  # of the fullest rank of a dense stage, whose ranks hold equal parts and differ by some percent
_COUNTERS = (
    "static_bytes", "after_setup_bytes", "num_alloc_retries", "num_ooms", "device_total_bytes", "limit_bytes", "host_max_rss_bytes",
)  # fmt: skip

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
    for rank, what in (*_of_ranks(record), *_of_peaks(record), *_of_stages(record)):
        problems.setdefault(what, []).append(rank)
    return (
        *(f"{ranks_text(sorted(set(ranks)))}: {what}" for what, ranks in problems.items()),
        *_too_fast(record, metrics),
        *_too_short(record),
        *_of_settings(record),
    )


def remarkable(record: RunRecord, metrics: Metrics) -> tuple[str, ...]:
    """Return a note for a model FLOPs utilization that is possible and very unusual; empty for CPU runs."""
    if metrics.mfu is None or record.spec.gpu_type.is_cpu or not USUAL_MFU < metrics.mfu <= 1:
        return ()
    return (
        f"an MFU of {format_share(metrics.mfu)} is unusually high: check that the recipe and the number of GPUs are those "
        "of this job",
    )


def _of_ranks(record: RunRecord) -> Iterator[tuple[int, str]]:
    """Yield contradictions in the ranks' records, with the rank."""
    expected, held = record.spec.num_gpus, Counter(rank.rank for rank in record.ranks)
    last = None if record.imported else record.spec.measure.max_steps - 1
    for rank in record.ranks:
        if held[rank.rank] > 1:
            yield rank.rank, f"recorded {held[rank.rank]} times"
        if not 0 <= rank.rank < expected:
            yield rank.rank, f"no such rank in a run of {expected} GPUs"
        if rank.world_size != expected:
            yield rank.rank, f"world_size is {rank.world_size}, the run has {expected} GPUs"
        if not rank.finished:
            yield rank.rank, "did not finish (finished: false), although the run ended well"
        if rank.failure:
            yield rank.rank, f"failed ({rank.failure.kind}), although the run ended well"
        yield from (
            (rank.rank, what) for what in (*_of_place(rank, record), *_of_steps(rank, last), *_of_counters(rank))
        )


def _of_place(rank: RankRecord, record: RunRecord) -> Iterator[str]:
    """Yield coordinates outside of the layout, another pipeline stage than that of the rank's number, and a CPU in place of a GPU."""
    sizes, dp = record.spec.parallelism, record.spec.data_parallel_size
    limits = Coordinates(
        tp=sizes.tensor_model_parallel_size,
        pp=sizes.pipeline_model_parallel_size,
        dp=dp,
        cp=sizes.context_parallel_size,
        ep=sizes.expert_model_parallel_size,
    )
    for (axis, place), (_, size) in zip(rank.coordinates, limits, strict=True):
        if not 0 <= place < size:
            yield f"pipeline stage {place} of {size}" if axis == "pp" else f"{axis.upper()} rank {place} of {size}"
    stage = rank.rank // max(1, limits.tp * limits.cp * limits.dp)
    if 0 <= stage < limits.pp and 0 <= rank.coordinates.pp < limits.pp and rank.coordinates.pp != stage:
        yield f"pipeline stage {rank.coordinates.pp}, its number belongs to stage {stage}"
    if rank.device and rank.device.kind == "cpu" and not record.spec.gpu_type.is_cpu:
        yield f"its device is a CPU, the run is of {record.spec.gpu}"


def _of_steps(rank: RankRecord, last: int | None) -> Iterator[str]:
    repeated = [step for step, times in Counter(step.step for step in rank.steps).items() if times > 1]
    if repeated:
        yield f"step {min(repeated)} is recorded more than once"
    if any(step.seconds < SHORTEST_STEP_S for step in rank.steps):
        yield "a step of less than 1 us is not possible"
    outside = [step.step for step in rank.steps if step.step < 0 or (last is not None and step.step > last)]
    if outside:
        yield f"step {min(outside)} is recorded, which the run does not have"


def _of_counters(rank: RankRecord) -> Iterator[str]:
    memory = rank.memory or MemoryRecord(meter="none")
    counters = {name: getattr(memory, name) for name in _COUNTERS}
    counters |= {"counted_flops_per_step": rank.counted_flops_per_step, "num_parameters": rank.num_parameters}
    for name, value in counters.items():
        if value is not None and value < 0:
            yield f"{name} is {value}"


def _of_stages(record: RunRecord) -> Iterator[tuple[int, str]]:
    """Yield ranks with far less memory than others of their stage, and ranks that reserve less than they allocate.

    The ranks of a stage hold equal parts of a dense model. Experts get different numbers of tokens; a log reports its ranks at
    different times.
    """
    peaks = [
        (rank, rank.memory.max_allocated_bytes, rank.memory.max_reserved_bytes) for rank in record.ranks if rank.memory
    ]
    for rank, allocated, reserved in peaks:
        if allocated is not None and reserved is not None and 0 < reserved < ROUNDED * allocated:
            yield (
                rank.rank,
                f"peak reserved of {format_bytes(reserved)} is less than peak allocated, {format_bytes(allocated)}",
            )
    if record.imported or record.spec.model.moe:
        return
    fullest: dict[int, int] = {}
    for rank, allocated, _ in peaks:
        fullest[rank.coordinates.pp] = max(allocated or 0, fullest.get(rank.coordinates.pp, 0))
    for rank, allocated, _ in peaks:
        most = fullest[rank.coordinates.pp]
        if allocated is not None and 0 < allocated < _LEAST_OF_STAGE * most:
            yield (
                rank.rank,
                f"peak allocated of {format_bytes(allocated)} is less than half of that of another rank of its stage, "
                f"{format_bytes(most)}",
            )


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
        there = (rank.memory.device_total_bytes if rank.memory else None) or round(LARGER_CARDS * gpu.memory_bytes)
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


def _too_short(record: RunRecord) -> Iterable[str]:
    """Return that the steps of a rank took longer than the run, as where milliseconds stand for seconds."""
    if record.imported or any(note.startswith(REPLAYED) for note in record.notes):
        return ()
    steps_s = max((math.fsum(step.seconds for step in rank.steps) for rank in record.ranks), default=0.0)
    if steps_s <= record.provenance.duration_s:
        return ()
    duration_s = record.provenance.duration_s
    return (f"the steps take {format_seconds(steps_s)} together, the whole run took {format_seconds(duration_s)}",)


def _of_settings(record: RunRecord) -> Iterable[str]:
    """Return that the settings are not those that the run was recorded with."""
    own = record.spec.fingerprint
    if record.fingerprint == own:
        return ()
    return (f"fingerprint: the record says {record.fingerprint}, its own settings have {own}",)
