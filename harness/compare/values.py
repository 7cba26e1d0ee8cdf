"""The values of a comparison with golden values of Megatron-Bridge or Megatron-LM."""

from dataclasses import dataclass

from harness.foreign.golden import ForeignGolden
from harness.foreign.log import ForeignLog
from harness.judge.gate import Comparison, Thresholds, Verdict
from harness.records.metrics import BY_NAME, Metric

# In the order of the report. A log names a peak after torch's counter.
FOREIGN_METRICS: tuple[Metric, ...] = (
    BY_NAME["tflops_per_gpu"],
    BY_NAME["step_time_s"],
    Metric("allocated_bytes", "Allocated", "bytes", "lower", "memory"),
    BY_NAME["peak_allocated_bytes"],
    BY_NAME["peak_reserved_bytes"],
)
METRIC = {metric.name: metric for metric in FOREIGN_METRICS}
COUNTERS = {
    "allocated_bytes": "allocated_bytes",
    "peak_allocated_bytes": "max_allocated_bytes",
    "peak_reserved_bytes": "max_reserved_bytes",
}


OF_BRIDGE = Thresholds(time=0.05, memory=0.05)
"""The allowed relative worsening in Megatron-Bridge."""


@dataclass(frozen=True)
class Window:
    """The golden's iterations that count, from step ``start`` to before step ``end``, counted from 0."""

    start: int
    end: int
    iterations: tuple[int, ...]


@dataclass(frozen=True)
class ForeignComparison:
    """A log compared with a golden. ``provisional``: which log ends before its job.

    ``settings``: those that differ between the arguments of two logs, those that can explain a change first.
    """

    log: ForeignLog
    golden: ForeignGolden
    window: Window
    comparison: Comparison
    doubts: tuple[str, ...]
    notes: tuple[str, ...]
    provisional: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()

    @property
    def outcome(self) -> Verdict:
        """Return the verdict; inconclusive instead of a provisional pass or improvement."""
        judged = self.comparison.outcome
        is_open = self.provisional and judged is not Verdict.REGRESSION
        return Verdict.INCONCLUSIVE if is_open else judged
