"""All pictures of a sweep, in the order of the report."""

from harness.analysis.sweep.values import SweepVerdict
from harness.records.sweeps import SweepData
from harness.report.charts.foretelling import foretelling
from harness.report.charts.memory_throughput import memory_throughput
from harness.report.charts.picture import Picture
from harness.report.charts.price_of_memory import price_of_memory
from harness.report.charts.rank_memory import rank_memory
from harness.report.charts.step_times import step_times
from harness.report.charts.timeline import timeline


def pictures(data: SweepData, verdict: SweepVerdict) -> tuple[Picture, ...]:
    """One entry for each, also for those that cannot be drawn. Needs altair."""
    return (
        memory_throughput(verdict),
        price_of_memory(verdict),
        rank_memory(data, verdict),
        timeline(data, verdict),
        foretelling(verdict),
        step_times(data, verdict),
    )
