"""All pictures of a sweep, in the order of the report."""

from harness.analysis.sweep_values import SweepVerdict
from harness.records.sweeps import SweepData
from harness.report.charts.memory_throughput import memory_throughput
from harness.report.charts.picture import Picture


def pictures(_data: SweepData, verdict: SweepVerdict) -> tuple[Picture, ...]:
    """One entry for each, also for those that cannot be drawn. Needs altair."""
    return (memory_throughput(verdict),)
