"""Golden values of Megatron-Bridge or Megatron-LM, bound to iterations, in seconds, TFLOP/s/GPU and bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.records.foreign.values import LogFormat


@dataclass(frozen=True, slots=True)
class GoldenStep:
    """What the golden says of one iteration; None where it says nothing, NaN where it says that."""

    step_time_s: float | None = None
    tflops_per_gpu: float | None = None
    loss: float | None = None


@dataclass(frozen=True)
class ForeignGolden:
    """A parsed golden file. ``steps`` by iteration, counted from 1 as in logs, in order.

    ``memory``: bytes by the names of :class:`RankMemory`, as Bridge stores them: allocated and its peak from the first
    report of a log, the reserved peak from all. ``memory_by_iteration``: the same names, as Megatron-LM stores them: the
    last rank's, iteration by iteration. ``layout`` says which part of the file was read. ``of_whole_run``: the peaks are
    those of a whole run, as in files that mbr-perf exports, not of a log's first report.
    """

    path: Path
    format: LogFormat
    layout: str
    steps: Mapping[int, GoldenStep]
    memory: Mapping[str, int] = field(default_factory=dict)
    memory_by_iteration: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    of_whole_run: bool = False
    notes: tuple[str, ...] = ()

    @property
    def timed(self) -> tuple[int, ...]:
        """The iterations that a window can count. Metrics of Megatron-LM have steps of their own."""
        if self.format == "bridge":
            return tuple(self.steps)
        timed = (n for n, step in self.steps.items() if step.step_time_s is not None or step.tflops_per_gpu is not None)
        return tuple(timed) or tuple(self.steps)

    @property
    def has_throughput(self) -> bool:
        """Whether any step has one."""
        return any(step.tflops_per_gpu is not None for step in self.steps.values())

    @property
    def has_loss(self) -> bool:
        """Whether any step has one."""
        return any(step.loss is not None for step in self.steps.values())
