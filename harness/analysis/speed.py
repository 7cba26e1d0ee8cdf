"""How fast repeats are, by the one estimator that every report of a sweep and of a night shares."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from harness.analysis.metrics import Metric, Metrics


@dataclass(frozen=True)
class Speed:
    """Mean over repeats of each run's median step time, and the rates at it: of TFLOP/s, MFU and HFU the harmonic mean.

    Runs of 0.1 s and 0.3 s per step, with 100 tokens per GPU, have 0.2 s and 500 token/s. One run has its own medians.
    None where any run lacks the figure. The mean, because Welch's interval is one of a difference of means.
    """

    step_time_s: float | None
    tflops_per_gpu: float | None
    tokens_per_s_per_gpu: float | None
    mfu: float | None
    hfu: float | None
    num_runs: int


def speed_of(runs: Sequence[Metrics], tokens_per_gpu: float) -> Speed | None:
    """The speed of repeats, with ``tokens_per_gpu`` in each step of theirs; None for no runs."""
    if not runs:
        return None
    times = _all([run.step_time_s.median if run.step_time_s else None for run in runs])
    mean_s = statistics.fmean(times) if times else None
    return Speed(
        step_time_s=mean_s,
        tflops_per_gpu=_rate([run.tflops_per_gpu.median if run.tflops_per_gpu else None for run in runs]),
        tokens_per_s_per_gpu=tokens_per_gpu / mean_s if mean_s else None,
        mfu=_rate([run.mfu for run in runs]),
        hfu=_rate([run.hfu for run in runs]),
        num_runs=len(runs),
    )


def cell_figure(metric: Metric, metrics: Metrics | None, speed: Speed | None) -> float | None:
    """What is shown of repeats for that metric: their speed where it is one of speed, else the runs' figure."""
    found: dict[str, float | None] = asdict(speed) if speed else {}
    if metric.name in found:
        return found[metric.name]
    return metric.read(metrics) if metrics else None


def _all(values: Sequence[float | None]) -> list[float] | None:
    present = [value for value in values if value is not None]
    return present if len(present) == len(values) else None


def _rate(values: Sequence[float | None]) -> float | None:
    present = _all(values)
    return statistics.harmonic_mean(present) if present else None
