"""The table of metrics: how to read each value and which direction is better. Speeds use the mean step time."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Literal

Better = Literal["higher", "lower", "equal"]
GateKind = Literal["time", "memory", "exact"]


@dataclass(frozen=True)
class Summary:
    """A per-step figure over the window [start, end); of repeats, the median of medians and spread. ``n``: steps."""

    median: float
    mean: float
    stdev: float | None
    n: int
    window: tuple[int, int]

    @property
    def relative_spread(self) -> float | None:
        """Return the standard deviation as a share of the mean; None for a single step or a mean of 0."""
        return None if self.stdev is None or not self.mean else self.stdev / self.mean


@dataclass(frozen=True)
class Peak:
    """Bytes of the worst rank, and its pipeline stage. ``missing_ranks`` have no reading, and may have more."""

    value: int
    rank: int
    stage: int
    missing_ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class RunClocks:
    """The slowest and the most capped rank (share 0 to 1); of repeats, medians. ``over`` run: no window is known."""

    sm_clock_mhz: float | None
    slowest_rank: int | None
    power_cap_share: float | None
    most_capped_rank: int | None
    over: str


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The figures of a run or its repeats; ``mfu`` and ``hfu`` are fractions. ``problems``: why a figure is absent."""

    tflops_per_gpu: Summary | None
    step_time_s: Summary | None
    tokens_per_s_per_gpu: Summary | None
    peak_allocated_bytes: Peak | None
    peak_reserved_bytes: Peak | None
    peak_device_bytes: Peak | None
    counted_flops_per_step: int | None
    mfu: float | None
    hfu: float | None
    loss_first: float | None
    loss_last: float | None
    model_flops_per_step: int
    recompute_flops_per_step: int
    clocks: RunClocks | None = None
    problems: dict[str, str] = field(default_factory=dict)
    formula_version: str
    num_runs: int = 1

    @property
    def peaks(self) -> dict[str, Peak | None]:
        return {name: getattr(self, name) for name in PEAKS}


SUMMARY_METRICS = tuple(each.name for each in fields(Metrics) if each.type == Summary | None)
PEAKS = tuple(each.name for each in fields(Metrics) if each.type == Peak | None)


@dataclass(frozen=True)
class Metric:
    """A row of the table. ``gate`` None: reported only. ``of``: the figures that ``value`` gets, if it is no field."""

    name: str
    title: str
    unit: str
    better: Better
    gate: GateKind | None
    of: tuple[str, ...] = ()
    value: Callable[..., float] = float

    @property
    def kind(self) -> GateKind:
        return self.gate or "time"

    def worsening(self, change: float) -> float:
        """Return by how much a relative change is a worsening; below 0 for an improvement."""
        return abs(change) if self.better == "equal" else change if self.better == "lower" else -change

    def read(self, metrics: Metrics) -> float | None:
        """Return the median of steps, or the peak of ranks; None where a figure is absent."""
        figures = [_number(getattr(metrics, name)) for name in self.of or (self.name,)]
        if any(figure is None for figure in figures):
            return None
        return self.value(*figures) if self.of else figures[0]


def _number(figure: Summary | Peak | float | None) -> float | None:
    match figure:
        case Summary(median=value) | Peak(value=value):
            return value
        case _:
            return figure


# Step time and token rate are throughput in other units. Gates on them would report a change three times.
METRICS: tuple[Metric, ...] = (
    Metric("tflops_per_gpu", "TFLOP/s/GPU", "TFLOP/s/GPU", "higher", "time"),
    Metric("step_time_s", "Step time", "s", "lower", None),
    Metric("tokens_per_s_per_gpu", "Tokens/s/GPU", "token/s/GPU", "higher", None),
    Metric("peak_allocated_bytes", "Peak allocated", "bytes", "lower", "memory"),
    Metric("peak_reserved_bytes", "Peak reserved", "bytes", "lower", "memory"),
    Metric("peak_device_bytes", "Peak device used", "bytes", "lower", "memory"),
    Metric("counted_flops_per_step", "Counted work", "FLOP/step", "equal", "exact"),
    Metric("mfu", "MFU", "fraction", "higher", None),
    Metric("hfu", "HFU", "fraction", "higher", None),
)
BY_NAME = {metric.name: metric for metric in METRICS}


@dataclass(frozen=True)
class Speed:
    """The mean over repeats of median step times, and harmonic means of rates, as Welch's interval is of means."""

    step_time_s: float | None
    tflops_per_gpu: float | None
    tokens_per_s_per_gpu: float | None
    mfu: float | None
    hfu: float | None
    num_runs: int


def speed_of(runs: Sequence[Metrics], tokens_per_gpu: float) -> Speed | None:
    """Return the speed of repeats, with ``tokens_per_gpu`` per step; None without runs."""
    if not runs:
        return None
    times = _all([_number(run.step_time_s) for run in runs])
    mean_s = statistics.fmean(times) if times else None
    return Speed(
        step_time_s=mean_s,
        tflops_per_gpu=_rate([_number(run.tflops_per_gpu) for run in runs]),
        tokens_per_s_per_gpu=tokens_per_gpu / mean_s if mean_s else None,
        mfu=_rate([run.mfu for run in runs]),
        hfu=_rate([run.hfu for run in runs]),
        num_runs=len(runs),
    )


def cell_figure(metric: Metric, metrics: Metrics | None, speed: Speed | None) -> float | None:
    """Return the figure to show for a metric of repeats: from ``speed`` for metrics of speed, else from ``metrics``."""
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
