"""Shows a comparison with a log, or with golden values of another program, for people and as JSON."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from harness.compare.figures import COUNTERS, ROWS, ForeignComparison, Window
from harness.compare.foreign import ForeignAnswer
from harness.foreign.golden import GoldenFormat
from harness.foreign.log import ForeignLog, LogFormat, WorstRank
from harness.judge.gate import Finding, Outcome, Verdict
from harness.measure.result import compared_line, comparison_table, reasons
from harness.records.metrics import Metric
from harness.show.json import Document, Shown, at
from harness.show.page import Details, Line, Page, details, listing
from harness.units import counted, format_bytes

SHOWN: Mapping[str, Metric] = {
    **ROWS,
    **{
        name: Metric(name, title, unit, "lower", "exact")
        for name, title, unit in (
            ("grad_norm_non_finite", "Gradient norms not finite", "count"),
            ("loss_correlation", "Loss: correlation", "number"),
            ("loss_points", "Loss: points out of tolerance", "fraction"),
            ("loss_final", "Loss: last", "loss"),
            ("loss_outliers", "Loss: outliers", "fraction"),
        )
    },
}
"""The rows of the table: figures, then checks, whose limits are no changes."""
_NAMES = {
    "bridge": "Megatron-Bridge",
    "megatron-lm": "Megatron-LM",
    "mbr-perf": "mbr-perf",
    None: "Megatron-Bridge or Megatron-LM",
}
_MOST_SOURCES = 3


def foreign_page(answer: ForeignAnswer) -> Page:
    """Return the verdict with the changes of time and peak, the findings, the reasons and what was read."""
    log, judged = answer.log, answer.comparison
    if judged is None:
        doubt = listing([f"In doubt: {log.truncated}"] * bool(log.truncated), style="doubt")
        return Page((_log_line(log), _notes(log.notes), doubt, "Not compared: no golden was named"))
    shown = [f for f in judged.comparison.findings if f.golden is not None or f.verdict is not Verdict.NOT_GATED]
    stated = " ".join(finding.reason for finding in shown)
    why = ((f.reason, SHOWN[f.metric].title) for f in shown if _has_reason(f))
    renewal = ["the golden may need an update; --actuals FILE writes this log's values as a golden"]
    return Page(
        (
            comparison_table(shown, SHOWN, "Log", "Reference" if judged.golden.log else "Golden"),
            *reasons(why),
            listing(f"Differs: {each}" for each in judged.settings),
            listing((f"In doubt: {doubt}" for doubt in judged.doubts if doubt not in stated), style="doubt"),
            listing((_log_line(log), _golden_line(judged), *_worst(log))),
            _notes((*judged.comparison.provisional, *judged.notes, *renewal * (answer.outcome == "improvement"))),
        ),
        answer=foreign_line(answer),
    )


def _notes(notes: Iterable[str]) -> Details:
    return details("note", [f"Note: {note}" for note in notes])


def _has_reason(finding: Finding) -> bool:
    """Return whether the reason says more than its row."""
    is_silent = finding.verdict is Verdict.PASS and not finding.current
    return bool(finding.reason) and finding.verdict is not Verdict.NOT_GATED and not is_silent


def foreign_line(answer: ForeignAnswer) -> Line:
    """Return line 1: the verdict with the changes of time and peak."""
    judged = answer.comparison
    assert judged is not None
    found = judged.comparison.findings
    return compared_line(
        judged.comparison, (*judged.doubts, *(f.reason for f in found if f.verdict is Verdict.INCONCLUSIVE))
    )


def _log_line(log: ForeignLog) -> str:
    shown = ", ".join(log.sources[:_MOST_SOURCES])
    more = f" and {len(log.sources) - _MOST_SOURCES} more" if len(log.sources) > _MOST_SOURCES else ""
    if not log.iterations:
        return f"Log {shown}{more}: no iterations in {counted(log.num_lines, 'line')}"
    first, last = log.iterations[0].number, log.iterations[-1].number
    total = f" of {log.total}" if log.total else ""
    return f"Log {shown}{more}: {_NAMES[log.format]}, iterations {first} to {last}{total}"


def _golden_line(judged: ForeignComparison) -> str:
    golden, window = judged.golden, judged.window
    count, (what, of) = len(window.iterations), ("Reference", "") if golden.log else ("Golden", f", {golden.layout}")
    return (
        f"{what} {golden.path}: {_NAMES[golden.format]}{of}, {counted(len(golden.steps), 'step')}; "
        f"window: {counted(count, 'step')}, [{window.start}, {window.end})"
    )


def _worst(log: ForeignLog) -> Iterable[str]:
    """Return the largest report of every counter, if several ranks report it."""
    found = [(ROWS[name].title.lower(), log.worst(counter)) for name, counter in COUNTERS.items()]
    peaks = [
        f"{title} {format_bytes(worst.value)} on rank {worst.rank} after iteration {worst.iteration}"
        for title, worst in found
        if worst
    ]
    ranks = len({report.rank for report in log.memory})
    return [f"Most memory of {ranks} ranks: {'; '.join(peaks)}"] if peaks and ranks > 1 else []


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
    provisional: tuple[str, ...]
    settings: tuple[str, ...]
    actuals: Path | None


def foreign_document(answer: ForeignAnswer) -> ForeignDocument:
    """Return the keys of `compare`, with the log and the golden as read."""
    log, judged = answer.log, answer.comparison
    if judged is None:
        none = dict.fromkeys(("comparison", "provisional", "settings"), ()) | dict.fromkeys(("golden", "window"))
        doubts = [log.truncated] if log.truncated else []
        return ForeignDocument.of(answer, log=Log.read_from(log), doubts=doubts, notes=log.notes, **none)
    golden, found = UsedFile.of(judged.golden, num_steps=len(judged.golden.steps)), judged.comparison
    more = {"comparison": found.findings, "provisional": found.provisional, "golden": golden}
    return ForeignDocument.of(answer, judged, log=Log.read_from(log), **more)
