"""Shows a comparison with golden values of Megatron-Bridge or Megatron-LM, for people and as JSON."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from harness.compare.judge import ForeignAnswer
from harness.compare.values import COUNTERS, METRIC, ForeignComparison, Window
from harness.foreign.golden import GoldenFormat
from harness.foreign.log import ForeignLog, LogFormat, WorstRank
from harness.judge.gate import Finding, Outcome, Verdict
from harness.show import figures
from harness.show.json import Document, Shown, at
from harness.show.page import Line, Page, Span, answer_line, details, listing, plain, style_of, table
from harness.units import counted, format_bytes, grouped, sentence


@dataclass(frozen=True)
class _Check:
    """A row that is not a metric: how to show its values and its limit."""

    title: str
    value: Callable[[float], str]
    allowed: Callable[[float], str]


def _share(value: float) -> str:
    return f"{value * 100:.1f} %"


_CHECKS = {
    "grad_norm_non_finite": _Check("Gradient norms not finite", lambda value: f"{value:.0f}", lambda _: "0"),
    "loss_correlation": _Check("Loss: correlation", lambda value: f"{value:.4f}", lambda limit: f"at least {limit:g}"),
    "loss_points": _Check("Loss: points out of tolerance", _share, lambda limit: f"at most {_share(limit)}"),
    "loss_final": _Check("Loss: last", lambda value: f"{value:.6g}", lambda limit: f"within {_share(limit)}"),
    "loss_outliers": _Check("Loss: outliers", _share, lambda limit: f"at most {_share(limit)}"),
}


def title(name: str) -> str:
    """Return the title of the metric or check."""
    return METRIC[name].title if name in METRIC else _CHECKS[name].title


def cells(finding: Finding) -> tuple[str, str, str, str, str]:
    """Return the title, the log's value, the golden's value, the change, and the allowed change."""
    if finding.metric in METRIC:
        metric = METRIC[finding.metric]
        return (
            metric.title,
            figures.figure(metric, finding.current),
            figures.figure(metric, finding.golden),
            figures.change(finding),
            figures.allowed_change(metric, finding),
        )
    check = _CHECKS[finding.metric]
    values = (finding.current, finding.golden)
    current, golden = (figures.ABSENT if value is None else check.value(value) for value in values)
    limit = figures.ABSENT if finding.threshold is None else check.allowed(finding.threshold)
    return check.title, current, golden, figures.change(finding), limit


_NAMES = {
    "bridge": "Megatron-Bridge",
    "megatron-lm": "Megatron-LM",
    "mbr-perf": "mbr-perf",
    None: "Megatron-Bridge or Megatron-LM",
}
_RIGHT = ("Log", "Golden", "Change", "Allowed")
_MOST_SOURCES = 3


def foreign_page(answer: ForeignAnswer) -> Page:
    """Return what was read, the findings, the reasons, the notes, and the verdict last."""
    log, judged, outcome = answer.log, answer.comparison, answer.outcome
    if judged is None:
        notes, doubt = (
            details("note", [f"Note: {note}" for note in log.notes]),
            [f"In doubt: {log.truncated}"] * bool(log.truncated),
        )
        return Page((_log_line(log), notes, listing(doubt, style="doubt"), "Not compared: no golden was named"))
    findings = judged.comparison.findings
    words = [finding.verdict.value.replace("_", " ") for finding in findings]
    rows = [(*cells(finding), Span(word, style_of(word))) for finding, word in zip(findings, words, strict=True)]
    reasons = " ".join(finding.reason for finding in findings)
    renewal = ["the golden may need an update; --actuals FILE writes this log's values as a golden"]
    notes = details("note", [f"Note: {note}" for note in (*judged.notes, *renewal * (outcome == "improvement"))])
    return Page(
        (
            _log_line(log),
            _golden_line(judged),
            table(("Metric", *_RIGHT, "Verdict"), rows, right=_RIGHT),
            listing(_reasons(findings)),
            listing(f"Provisional: {each}" for each in judged.provisional),
            listing(f"Differs: {each}" for each in judged.settings),
            listing((f"In doubt: {doubt}" for doubt in judged.doubts if doubt not in reasons), style="doubt"),
            listing(_worst(log)),
            notes,
        ),
        answer=_answer(judged),
    )


def answer_text(answer: ForeignAnswer) -> str:
    """Return the first line of the page."""
    return plain(_answer(answer.comparison).words) if answer.comparison else "Not compared: no golden was named"


def _answer(judged: ForeignComparison) -> Line:
    """Return ``REGRESSION: 2.741 s a step, +8.1 %; ...``, with the peak, and whether the verdict is provisional."""
    by_name, word = {each.metric: each for each in judged.comparison.findings}, judged.comparison.outcome.value
    shown = [by_name[name] for name in ("step_time_s", "tflops_per_gpu", "peak_allocated_bytes") if name in by_name]
    texts = [f"{_figure(each)}, {_change(each)}" for each in shown if each.current is not None]
    return answer_line(
        (Span(word.upper(), style_of(word)), f": {'; '.join(texts) or 'no figure to compare'}."),
        *(f" {sentence(text)}: provisional." for text in judged.provisional),
        *(f" {sentence(text)}." for text in judged.doubts),
    )


def _figure(finding: Finding) -> str:
    value = figures.figure(METRIC[finding.metric], finding.current)
    before, after = {"step_time_s": ("", " a step"), "peak_allocated_bytes": ("peak ", "")}.get(
        finding.metric, ("", " TFLOP/s/GPU")
    )
    return f"{before}{value}{after}"


def _change(finding: Finding) -> str:
    if finding.change is None:
        return "not compared"
    return "equal" if abs(finding.change) < 0.0005 else figures.change(finding)


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
    count = len(window.iterations)
    return (
        f"Golden {golden.path}: {_NAMES[golden.format]}, {golden.layout}, {counted(len(golden.steps), 'step')}; "
        f"window: {counted(count, 'step')}, [{window.start}, {window.end})"
    )


def _reasons(findings: Sequence[Finding]) -> Iterable[str]:
    """Return one line per reason, with all metrics that share it. The table already shows metrics without a verdict."""
    judged = (each for each in findings if each.verdict is not Verdict.NOT_GATED or each.metric not in METRIC)
    explained = (each for each in judged if each.reason and not (each.verdict is Verdict.PASS and not each.current))
    shared = grouped((each.reason, title(each.metric)) for each in explained)
    return [f"{', '.join(titles)}: {reason}" for reason, titles in shared.items()]


def _worst(log: ForeignLog) -> Iterable[str]:
    """Return the largest report of every counter, if several ranks report it."""
    found = [(METRIC[name], log.worst(counter)) for name, counter in COUNTERS.items()]
    peaks = [
        f"{metric.title.lower()} {format_bytes(worst.value)} on rank {worst.rank} after iteration {worst.iteration}"
        for metric, worst in found
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
        doubts = [log.truncated] if log.truncated else []
        more = {"comparison": (), "golden": None, "window": None, "doubts": doubts, "notes": log.notes}
        more |= {"provisional": (), "settings": ()}
        return ForeignDocument.of(answer, log=Log.read_from(log), **more)
    golden = UsedFile.of(judged.golden, num_steps=len(judged.golden.steps))
    findings = judged.comparison.findings
    return ForeignDocument.of(answer, judged, log=Log.read_from(log), golden=golden, comparison=findings)
