"""Finds figures of golden values and of logs that cannot be true: such a comparison gets no verdict."""

import math
from collections.abc import Iterable, Iterator, Mapping

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.gpu import GPUS, PRECISIONS
from harness.judge.plausible_ranks import LARGER_CARDS, LEAST_COUNTED, ROUNDED, SHORTEST_STEP_S, least_by_stage
from harness.predict import flops
from harness.predict.flops import FORMULA_VERSION, least_flops_by_stage
from harness.predict.model_states import least_weight_bytes
from harness.records.golden import GoldenRecord, spec_like
from harness.units import TERA, format_bytes, format_share

# A golden's throughput and step time are medians of the same steps: rounding and an even number of runs explain so much.
_SAME_STEPS = 0.1
_LARGEST_HOST_BYTES = 2**46  # 64 TiB; the largest servers with one memory have less

Stored = Mapping[str, float]


def impossible_golden(golden: GoldenRecord) -> tuple[str, ...]:
    """Return which figures of a golden cannot be true, one sentence each."""
    values = {name: stored.value for name, stored in golden.metrics.items()}
    spec = spec_like(golden)
    series = [(values.get("step_time_s"), values.get("tflops_per_gpu"))]
    peaks = {name: round(value) for name, value in values.items() if name.startswith("peak_")}
    found = (
        *_of_series(series, peaks, golden.gpu, golden.compute_dtype),
        *_of_pairs(values),
        *(_of_settings(values, spec, golden.formula_version) if spec else ()),
    )
    return tuple(f"the golden's {what}" for what in found)


def _of_pairs(values: Stored) -> Iterator[str]:
    """Yield an MFU above 1, and less reserved than allocated."""
    mfu, allocated, reserved = (values.get(name) for name in ("mfu", "peak_allocated_bytes", "peak_reserved_bytes"))
    if mfu is not None and mfu > 1:
        yield f"MFU of {format_share(mfu)} is not possible"
    if allocated is not None and reserved is not None and reserved < ROUNDED * allocated:
        yield (
            f"peak_reserved_bytes of {format_bytes(round(reserved))} is less than its peak_allocated_bytes, "
            f"{format_bytes(round(allocated))}"
        )


def _of_settings(values: Stored, spec: ExperimentSpec, formula: str | None) -> Iterator[str]:
    """Yield figures that contradict the golden's own settings: their parameters, and the FLOPs of a step."""
    least = max(least_by_stage(least_weight_bytes, spec), default=0.0)
    for name, value in values.items():
        if name.startswith("peak_") and value < least:
            yield (
                f"{name} of {format_bytes(round(value))} is less than the parameters of its fullest stage, which have at least "
                f"{format_bytes(round(least))}"
            )
    counted, work = values.get("counted_flops_per_step"), math.fsum(least_by_stage(least_flops_by_stage, spec))
    if counted is not None and spec.gpu_type.is_cpu and spec.is_described and counted < LEAST_COUNTED * work:
        yield f"counted_flops_per_step of {counted:,.0f} is less than the matrix multiplications of its layers need, {work:,.0f}"
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
    return tuple(f"{whose}: {what}" for what in _of_series(steps, peaks, gpu, dtype))


def _of_series(
    steps: Iterable[tuple[float | None, float | None]], peaks: Mapping[str, int], gpu: str, dtype: str
) -> Iterator[str]:
    timed = [*steps]
    seconds, speeds = ([value for pair in timed if (value := pair[i]) is not None] for i in (0, 1))
    known, precision = GPUS.get(gpu), PRECISIONS.get(dtype)
    gpu_peak = known.peak_flops.get(precision.peak) if known and precision else None
    peak_name = f"{precision.peak} peak of {gpu}" if gpu_peak and precision else "peak of any GPU that mbr-perf knows"
    peak = gpu_peak or max(flops for row in GPUS.values() for flops in row.peak_flops.values())
    if any(value < SHORTEST_STEP_S for value in seconds):
        yield f"step time of {min(seconds):g} s is not possible"
    if any(value * TERA > peak for value in speeds):
        yield f"{max(speeds):g} TFLOP/s/GPU are above the dense {peak_name}, {peak / TERA:g} TFLOP/s"
    most, whose = float(_LARGEST_HOST_BYTES), "the memory of any server"
    if known is None or not known.is_cpu:
        most = LARGER_CARDS * (known.memory_bytes if known else max(row.memory_bytes for row in GPUS.values()))
        whose = f"{LARGER_CARDS:g} times the memory of {gpu if known else 'any GPU'}"
    for name, size in peaks.items():
        if size <= 0:
            yield f"{name} of {size} bytes is not possible"
        elif size > most:
            yield f"{name} of {format_bytes(size)} is more than {whose}, {format_bytes(round(most))}"
