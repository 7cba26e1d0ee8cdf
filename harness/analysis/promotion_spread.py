"""How far the repeats behind a golden may differ, given the change that it is to catch."""

from collections.abc import Mapping, Sequence

from harness.analysis.gate import default_thresholds
from harness.analysis.metrics import METRICS
from harness.errors import BadRequestError
from harness.records.golden import GoldenMetric
from harness.spec.experiment import ExperimentSpec
from harness.units import format_percent

# At half the threshold one of twenty equal runs lies beyond it (two standard deviations), whatever the golden says.
MOST_OF_THRESHOLD = 0.5


def wide_spreads(
    spec: ExperimentSpec, metrics: Mapping[str, GoldenMetric], num_runs: int, thresholds: Mapping[str, float]
) -> tuple[str, ...]:
    """One sentence, with numbers, per gated time metric whose repeats differ by more than half the threshold.

    ``thresholds``: by metric name, where it is not the GPU row's. Repeats of memory metrics are held by the gate itself.
    """
    row = default_thresholds(spec, num_runs).time
    found = []
    for metric in METRICS:
        stored = metrics.get(metric.name)
        if metric.gate != "time" or stored is None or stored.relative_spread is None:
            continue
        threshold = thresholds.get(metric.name, row)
        if stored.relative_spread > MOST_OF_THRESHOLD * threshold:
            found.append(_sentence(metric.name, stored.relative_spread, num_runs, threshold))
    return tuple(found)


def _sentence(name: str, spread: float, num_runs: int, threshold: float) -> str:
    most = format_percent(MOST_OF_THRESHOLD * threshold).lstrip("+")
    return (
        f"{name}: {num_runs} runs spread by {spread * 100:.1f} % (standard deviation), more than {most}, "
        f"half the {threshold * 100:g} % that it is to guard"
    )


def spread_problems(wide: Sequence[str]) -> list[BadRequestError]:
    """The sentences of :func:`wide_spreads` as refusals."""
    remedy = (
        "find what disturbs the runs and repeat them, or store other metrics with --only; "
        "--accept_spread promotes all the same, and is put on record"
    )
    return [BadRequestError(each, remedy=remedy) for each in wide]
