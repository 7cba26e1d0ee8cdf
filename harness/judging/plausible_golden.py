"""Finds figures of golden values and of logs that cannot be true: such a comparison gets no verdict."""

import math
from collections.abc import Iterable, Iterator, Mapping

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.gpu import GPUS, PRECISIONS, GpuType
from harness.experiment.layout import LayoutError
from harness.judging.plausible_ranks import LARGER_CARDS, ROUNDED, SHORTEST_STEP_S
from harness.planning import flops
from harness.planning.flops import FORMULA_VERSION
from harness.planning.model_states import least_weight_bytes
from harness.records.golden import GoldenRecord, spec_like
from harness.units import TERA, format_bytes, format_share

# A golden's throughput and step time are medians of the same steps: rounding and an even number of runs explain so much.
_SAME_STEPS = 0.1
_LARGEST_HOST_BYTES = 2**46  # 64 TiB; the largest servers with one memory have less

Stored = Mapping[str, float]


def impossible_golden(golden: GoldenRecord) -> tuple[str, ...]:
    """Return which figures of a golden cannot be true, one sentence each."""
    values = {name: stored.value for name, stored in golden.metrics.items()}
    gpu, spec = GPUS.get(golden.gpu), spec_like(golden)
    found = (
        *_of_speed(values, gpu, golden.compute_dtype),
        *_of_memory(values, gpu),
        *(_of_settings(values, spec, golden.formula_version) if spec else ()),
    )
    return tuple(f"the golden's {what}" for what in found)


def _of_speed(values: Stored, gpu: GpuType | None, dtype: str) -> Iterator[str]:
    precision = PRECISIONS.get(dtype)
    peak = gpu.peak_flops.get(precision.peak) if gpu and precision else None
    speed, step, mfu = (values.get(name) for name in ("tflops_per_gpu", "step_time_s", "mfu"))
    if gpu and precision and peak is not None and speed is not None and speed * TERA > peak:
        yield f"{speed:g} TFLOP/s/GPU are above the dense {precision.peak} peak of {gpu.name}, {peak / TERA:g} TFLOP/s"
    if step is not None and step < SHORTEST_STEP_S:
        yield f"step time of {step:g} s is not possible"
    if mfu is not None and mfu > 1:
        yield f"MFU of {format_share(mfu)} is not possible"


def _of_memory(values: Stored, gpu: GpuType | None) -> Iterator[str]:
    """Yield peaks above the memory of the device, and less reserved than allocated."""
    there, whose = (_LARGEST_HOST_BYTES, "every server") if gpu is None or gpu.is_cpu else (gpu.memory_bytes, gpu.name)
    most = there if gpu is None or gpu.is_cpu else LARGER_CARDS * there
    for name, value in values.items():
        if name.startswith("peak_") and value > most:
            yield (
                f"{name} of {format_bytes(round(value))} is more than the memory of {whose}, {format_bytes(round(there))}"
            )
    allocated, reserved = (values.get(f"peak_{kind}_bytes") for kind in ("allocated", "reserved"))
    if allocated is not None and reserved is not None and reserved < ROUNDED * allocated:
        yield (
            f"peak_reserved_bytes of {format_bytes(round(reserved))} is less than its peak_allocated_bytes, "
            f"{format_bytes(round(allocated))}"
        )


def _of_settings(values: Stored, spec: ExperimentSpec, formula: str | None) -> Iterator[str]:
    """Yield figures that contradict the golden's own settings: their parameters, and the FLOPs of a step."""
    try:
        least = max(least_weight_bytes(spec), default=0.0)
    except LayoutError:
        least = 0.0
    for name, value in values.items():
        if name.startswith("peak_") and value < least:
            yield (
                f"{name} of {format_bytes(round(value))} is less than the parameters of its fullest stage, which have at least "
                f"{format_bytes(round(least))}"
            )
    speed, step = values.get("tflops_per_gpu"), values.get("step_time_s")
    if speed is None or step is None or formula != FORMULA_VERSION or not spec.is_described:
        return
    expected = flops.achieved_tflops(flops.model_flops_per_step(spec), step, spec.num_gpus)
    if abs(speed / expected - 1) > _SAME_STEPS:
        yield (
            f"throughput and step time contradict each other: a step of {step:g} s of these settings is "
            f"{expected:.5g} TFLOP/s/GPU, not {speed:.5g}"
        )


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
    most = math.inf if rows[0].is_cpu else LARGER_CARDS * max(row.memory_bytes for row in rows)
    found += [f"{name} of {size} bytes is not possible" for name, size in peaks.items() if size <= 0]
    found += [
        f"{name} of {format_bytes(size)} is more than any {gpu or 'GPU'} has"
        for name, size in peaks.items()
        if size > most
    ]
    return tuple(f"{whose}: {what}" for what in found)
