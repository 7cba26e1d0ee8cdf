"""Finds figures in the ranks' records that cannot be true, or that contradict each other."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.gpu import gpu_named
from harness.experiment.layout import LayoutError
from harness.judge import readings
from harness.predict.flops import least_flops_by_stage
from harness.predict.model_states import least_weight_bytes
from harness.records.rank import Coordinates, MemoryRecord, RankRecord, coordinates
from harness.records.run import REPLAYED, RunRecord
from harness.units import TERA, counted, format_bytes, format_seconds

SHORTEST_STEP_S = 1e-6  # launching a single kernel takes longer
LARGER_CARDS = 1.5  # of a GPU's memory: some are sold with more, such as 94 and 96 GB instead of 80
ROUNDED = 0.99  # logs round bytes to MB or GB, so that the larger of two figures may look smaller by so much
_LEAST_OF_STAGE = 0.5  # of the fullest rank of a dense stage, whose ranks hold equal parts and differ by some percent
_LONGEST_PAUSE = (
    100.0  # times the length of its steps: so long may a rank pause between them, for example to write to a slow disk
)
# Of one thread in a second, twice the peak of the fastest matrix units (about 2 and 8 TFLOP/s): fp32 in Apple's SME, bf16 in Intel's AMX.
_MOST_THREAD_FLOPS = {"fp32": 4 * TERA, "bf16": 16 * TERA}
_MOST_UNTOUCHED = 4.0  # peak of tensors per byte that the process held: pages may be swapped out, or never touched
LEAST_COUNTED = 0.5  # of the FLOPs that a rank executes at least
_LARGEST_LOSS = 3.5e38  # ranks compute it in fp32, which ends at 3.4e38
_COUNTERS = (
    "static_bytes", "after_setup_bytes", "num_alloc_retries", "num_ooms", "device_total_bytes", "limit_bytes", "host_max_rss_bytes",
)  # fmt: skip

Readers = Mapping[str, Callable[[RankRecord], int | None]]


def is_measured(record: RunRecord) -> bool:
    """Return whether the run's own ranks measured its figures: not a log, and not a recording."""
    return record.imported is None and not any(note.startswith(REPLAYED) for note in record.notes)


def impossible_of_ranks(record: RunRecord) -> Iterator[tuple[int, str]]:
    """Yield every figure that cannot be true, with its rank."""
    yield from _of_ranks(record)
    yield from _of_peaks(record)
    yield from _of_stages(record)
    if is_measured(record):
        yield from _impossible_hosts(record)
        yield from _shared_devices(record)
        yield from _impossible_flops(record) if record.spec.gpu_type.is_cpu else ()


def _of_ranks(record: RunRecord) -> Iterator[tuple[int, str]]:
    """Yield contradictions in the ranks' records, with the rank."""
    expected, held = record.spec.num_gpus, Counter(rank.rank for rank in record.ranks)
    last = None if record.imported else record.spec.measure.max_steps - 1
    for place, rank in enumerate(record.ranks):
        if record.imported is None and rank.rank != place:
            yield rank.rank, f"its record is at the position of rank {place}: files of ranks were exchanged"
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
        found = (*_of_place(rank, record), *_of_steps(rank, last), *_of_counters(rank))
        own = _of_own_measurements(rank, record) if is_measured(record) else ()
        yield from ((rank.rank, what) for what in (*found, *own))


def _of_place(rank: RankRecord, record: RunRecord) -> Iterator[str]:
    """Yield coordinates outside of the layout, or of another rank, and a CPU in place of a GPU."""
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
        yield f"pipeline stage {rank.coordinates.pp}, but its number belongs to stage {stage}"
    elif (
        is_measured(record)
        and record.spec.engine is None
        and rank.coordinates != (own := coordinates(rank.rank, record.spec))
    ):
        yield f"its place is {_place(rank.coordinates)}, but its number belongs to {_place(own)}"
    if rank.device and rank.device.kind == "cpu" and not record.spec.gpu_type.is_cpu:
        yield f"its device is a CPU, the run is of {record.spec.gpu}"


def _place(coordinates: Coordinates) -> str:
    return " ".join(f"{axis}={place}" for axis, place in coordinates)


def _of_steps(rank: RankRecord, last: int | None) -> Iterator[str]:
    repeated = [step for step, times in Counter(step.step for step in rank.steps).items() if times > 1]
    if repeated:
        yield f"step {min(repeated)} is recorded more than once"
    if any(step.seconds < SHORTEST_STEP_S for step in rank.steps):
        yield "a step of less than 1 us is not possible"
    outside = [step.step for step in rank.steps if step.step < 0 or (last is not None and step.step > last)]
    if outside:
        yield f"step {min(outside)} is recorded, which the run does not have"


def _of_own_measurements(rank: RankRecord, record: RunRecord) -> Iterator[str]:
    """Yield contradictions that only count for a rank's own measurements.

    Imported logs are not checked here, because they round values and omit some.
    """
    yield from _impossible_step_times(rank)
    yield from _of_loss(rank, record)
    yield from _of_memory(rank)
    yield from _of_device(rank, record)


def _impossible_step_times(rank: RankRecord) -> Iterator[str]:
    """Yield steps that are much shorter than the time between their ends."""
    ends = [step.ended_s for step in rank.steps if step.ended_s is not None]
    if len(ends) < max(2, len(rank.steps)):
        return
    steps_s, passed_s = math.fsum(step.seconds for step in rank.steps[1:]), ends[-1] - ends[0]
    if passed_s > max(1.0, _LONGEST_PAUSE * steps_s):
        yield (
            f"the steps after the first took {format_seconds(steps_s)} together, but {format_seconds(passed_s)} passed between the "
            f"ends of the first and the last step"
        )


def _of_loss(rank: RankRecord, record: RunRecord) -> Iterator[str]:
    """Yield losses that a rank cannot have computed: the mean cross-entropy of mbr-perf's own loop, in fp32."""
    steps = {step.step: step.loss for step in rank.steps}
    too_large = [step for step, loss in steps.items() if loss is not None and abs(loss) > _LARGEST_LOSS]
    if too_large:
        yield f"the loss of step {too_large[0]} is {steps[too_large[0]]:g}, beyond the range of fp32 (3.4e38)"
    if record.spec.engine is not None:
        return
    not_above = [step for step, loss in steps.items() if loss is not None and loss <= 0]
    if not_above:
        yield f"the loss of step {not_above[0]} is {steps[not_above[0]]:g}, but a cross-entropy is greater than 0"
    negative = [step for step in rank.steps if step.grad_norm is not None and step.grad_norm < 0]
    if negative:
        yield f"the gradient norm of step {negative[0].step} is {negative[0].grad_norm:g}, but a norm is not negative"
    missing = [step for step, loss in steps.items() if loss is None]
    if missing and rank.coordinates.pp == record.spec.parallelism.pipeline_model_parallel_size - 1:
        yield f"step {missing[0]} has no loss, although the last pipeline stage computes one in each step"


def _of_counters(rank: RankRecord) -> Iterator[str]:
    memory = rank.memory or MemoryRecord(meter="none")
    counters = {name: getattr(memory, name) for name in _COUNTERS}
    counters |= {"counted_flops_per_step": rank.counted_flops_per_step, "num_parameters": rank.num_parameters}
    for name, value in counters.items():
        if value is not None and (value < 0 or (value == 0 and name == "num_parameters")):
            yield f"{name} is {value}"


def _of_memory(rank: RankRecord) -> Iterator[str]:
    """Yield readings of allocated memory above the rank's peak. The peak covers the whole run, so no reading can be higher."""
    memory = rank.memory or MemoryRecord(meter="none")
    peak = memory.max_allocated_bytes
    if peak is None:
        return
    held = {
        "after the setup (after_setup_bytes)": memory.after_setup_bytes,
        "between steps (static_bytes)": memory.static_bytes,
    }
    if memory.timeline is not None and memory.limit_bytes is None:
        # with a memory limit, the timeline and the peak come from different steps
        held["in its timeline"] = max(memory.timeline.max_bytes, default=0)
    for when, value in held.items():
        if value is not None and peak < ROUNDED * value:  # not exact: on a CPU, both come from different steps
            yield f"peak allocated is {format_bytes(peak)}, but the rank held {format_bytes(value)} {when}"


def _of_device(rank: RankRecord, record: RunRecord) -> Iterator[str]:
    """Yield another device than that of the run. mbr-perf starts no rank on a GPU that its table does not know."""
    device, gpu = rank.device, record.spec.gpu_type
    if device is None:
        yield "its device is not recorded"
    elif device.kind == "cuda" and gpu_named(device.name) is not gpu:
        yield f"ran on {device.name}, the run is of {gpu.name}"
    memory = rank.memory or MemoryRecord(meter="none")
    if not gpu.is_cpu and (memory.device_total_bytes or 0) > LARGER_CARDS * gpu.memory_bytes:
        total = format_bytes(memory.device_total_bytes or 0)
        yield f"its device has {total}, more than {LARGER_CARDS:g} times the memory of {gpu.name}"
    if memory.num_ooms:
        yield f"{counted(memory.num_ooms, 'allocation')} failed for lack of memory (num_ooms), although the run ended well"


def _shared_devices(record: RunRecord) -> Iterator[tuple[int, str]]:
    """Yield ranks that name the same GPU: each rank has its own."""
    uuids = {rank.rank: rank.device.uuid for rank in record.ranks if rank.device and rank.device.uuid}
    held = Counter(uuids.values())
    yield from (
        (rank, f"{held[uuid]} ranks name the same GPU, {uuid}") for rank, uuid in uuids.items() if held[uuid] > 1
    )


def _impossible_hosts(record: RunRecord) -> Iterator[tuple[int, str]]:
    """Yield ranks on another host than the other ranks of their node: torchrun numbers the ranks node by node."""
    size = record.spec.gpus_per_node
    if len({rank.hostname for rank in record.ranks}) == 1:
        return
    for first in range(0, len(record.ranks), size):
        node = record.ranks[first : first + size]
        ((home, _),) = Counter(rank.hostname for rank in node).most_common(1)
        yield from (
            (rank.rank, f"ran on {rank.hostname}, but the other ranks of its node ran on {home}")
            for rank in node
            if rank.hostname != home
        )


def _impossible_flops(record: RunRecord) -> Iterator[tuple[int, str]]:
    """Yield FLOPs of a CPU run that are too few for the rank's layers, and more of them in a second than a processor can do.

    GPU ranks count none.
    """
    spec = record.spec
    threads = record.provenance.environment.get("OMP_NUM_THREADS", "")
    num_threads = int(threads) if threads.isdecimal() else 0
    most = _MOST_THREAD_FLOPS[spec.precision.params_dtype] * (num_threads or math.inf)
    least = least_by_stage(least_flops_by_stage, spec) if spec.is_described else ()
    for rank in record.ranks:
        counted, stage = rank.counted_flops_per_step, rank.coordinates.pp
        if counted is None or not rank.steps:
            continue
        expected = least[stage] * len(least) / spec.num_gpus if 0 <= stage < len(least) else 0.0
        if 0 <= counted < LEAST_COUNTED * expected:
            yield (
                rank.rank,
                f"counted {counted:,} FLOPs in a step, but the matrix multiplications of its layers need {round(expected):,}",
            )
        fastest_s = min(step.seconds for step in rank.steps)
        if counted > most * fastest_s:
            yield (
                rank.rank,
                f"a step of {fastest_s:.3g} s is too short for {counted:,} FLOPs: no processor does more than "
                f"{most / TERA:g} TFLOP/s with OMP_NUM_THREADS={threads}",
            )


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
    least = least_by_stage(least_weight_bytes, record.spec)
    for rank in record.ranks:
        stage = rank.coordinates.pp
        weights = least[stage] if 0 <= stage < len(least) else 0.0
        for name, read in readers.items():
            peak = read(rank)
            if peak is None:
                continue
            too_much = [
                f"{what}, {format_bytes(most)}" for what, most in _upper_bounds(rank, record, name) if peak > most
            ]
            if peak <= 0:
                yield rank.rank, f"peak {name} is {peak} bytes"
            elif too_much:
                yield rank.rank, f"peak {name} of {format_bytes(peak)} is more than {too_much[0]}"
            elif peak < weights:
                yield (
                    rank.rank,
                    f"peak {name} of {format_bytes(peak)} is less than the rank's parameters, which have at least "
                    f"{format_bytes(weights)}",
                )


def _upper_bounds(rank: RankRecord, record: RunRecord, name: str) -> Iterator[tuple[str, float]]:
    """Yield the bounds of a peak of this rank, with what has so many bytes."""
    memory, gpu = rank.memory or MemoryRecord(meter="none"), record.spec.gpu_type
    if not gpu.is_cpu:
        if memory.device_total_bytes:
            yield "the device has", memory.device_total_bytes
        else:
            yield f"{LARGER_CARDS:g} times the memory of {gpu.name}", LARGER_CARDS * gpu.memory_bytes
    elif memory.host_max_rss_bytes is not None and record.imported is None:
        yield (
            f"{_MOST_UNTOUCHED:g} times the most that the process held (host_max_rss_bytes)",
            _MOST_UNTOUCHED * memory.host_max_rss_bytes,
        )
    if memory.limit_bytes is not None and name != "device used":
        yield "the rank's memory limit", memory.limit_bytes


def least_by_stage(least_of: Callable[[ExperimentSpec], tuple[float, ...]], spec: ExperimentSpec) -> tuple[float, ...]:
    """Return a figure of every pipeline stage; empty if the model cannot be cut."""
    try:
        return least_of(spec)
    except LayoutError:  # a rule reports it; an imported job may have been cut otherwise
        return ()
