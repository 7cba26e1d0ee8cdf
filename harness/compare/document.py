"""JSON of the comparison of a training log with golden values."""

from pathlib import Path
from typing import Self

from harness.compare.judge import ForeignAnswer
from harness.compare.values import Window
from harness.foreign.golden import GoldenFormat
from harness.foreign.log import ForeignLog, LogFormat, WorstRank
from harness.judge.gate import Finding, Outcome
from harness.show.json import Document, Shown, at

_COUNTERS = ("allocated_bytes", "max_allocated_bytes", "reserved_bytes", "max_reserved_bytes", "device_used_bytes")


class Log(Shown):
    """The log as read."""

    format: LogFormat | None
    sources: tuple[str, ...]
    first_iteration: int | None = at("iterations", 0, "number")
    last_iteration: int | None = at("iterations", -1, "number")
    num_iterations: int
    total_iterations: int | None = at("total")
    world_size: int | None
    truncated: str | None
    restarts: tuple[int, ...]
    worst_memory: dict[str, WorstRank]

    @classmethod
    def read_from(cls, log: ForeignLog) -> Self:
        """Return the log; ``worst_memory`` has the counters that any rank reported."""
        worst = {name: found for name in _COUNTERS if (found := log.worst(name))}
        return cls.of(log, num_iterations=len(log.iterations), worst_memory=worst)


class UsedFile(Shown):
    """The golden file of another program."""

    path: Path
    format: GoldenFormat
    layout: str
    num_steps: int


class ForeignDocument(Document):
    """``mbr-perf compare --log FILE --json``. Seconds, TFLOP/s/GPU and bytes."""

    outcome: Outcome
    exit_code: int
    log: Log
    comparison: tuple[Finding, ...]
    golden: UsedFile | None
    window: Window | None
    doubts: tuple[str, ...]
    notes: tuple[str, ...]
    actuals: Path | None


def foreign_document(answer: ForeignAnswer) -> ForeignDocument:
    """Return the keys of `compare`, with the log and the golden as read."""
    log, judged = answer.log, answer.comparison
    if judged is None:
        doubts = [log.truncated] if log.truncated else []
        more = {"comparison": (), "golden": None, "window": None, "doubts": doubts, "notes": log.notes}
        return ForeignDocument.of(answer, log=Log.read_from(log), **more)
    golden = UsedFile.of(judged.golden, num_steps=len(judged.golden.steps))
    findings = judged.comparison.findings
    return ForeignDocument.of(answer, judged, log=Log.read_from(log), golden=golden, comparison=findings)
