"""What the plans of sweeps, nights and Slurm jobs have in common: an entry that may run, how it is launched and judged."""

from typing import Literal

from pydantic import Field

from harness.records.prediction import PredictionRecord
from harness.spec.experiment import ExperimentSpec
from harness.spec.frozen import Frozen
from harness.spec.rules.finding import Finding

Purpose = Literal["repeat", "retry", "confirm", "aa"]
"""What a run of an entry is for."""


class EntryWords(Frozen):
    """What a plan says of every entry, whether it may run or not. ``sources`` and ``notes`` are those of its runs."""

    name: str
    spec: ExperimentSpec | None = None
    sources: dict[str, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    prediction: PredictionRecord | None = None
    no_prediction: str = ""


class PlannedEntry(EntryWords):
    """An entry that may run: no rule forbids it, and its experiment is known."""

    spec: ExperimentSpec

    @property
    def force(self) -> tuple[str, ...]:
        """The rules that were overridden for it."""
        return tuple(finding.id for finding in self.findings if finding.overridden)


class BatchLaunch(Frozen):
    """How the runs are launched, in the words of `mbr-perf run`; ``pass_env`` holds names, never values.

    With several nodes the others follow the first through the shared folder; address and port are where they meet.
    """

    launcher: str = "torchrun"
    replay_from: str | None = None
    timeout_s: float | None = None
    hang_timeout_s: float = 600.0
    sample_interval_ms: int = 50
    pass_env: tuple[str, ...] = ()
    nnodes: int = 1
    master_addr: str | None = None
    master_port: int | None = None


class BatchGate(Frozen):
    """How the runs are compared with golden values, in the words of `mbr-perf run`."""

    golden_values_path: str | None = None
    timing_threshold: float | None = None
    memory_threshold: float | None = None
    accept_differences: tuple[str, ...] = ()
    fail_on_improvement: bool = False
    require_golden: bool = False
