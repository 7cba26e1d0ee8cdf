"""The table of a night as text, one row per case in the plan's order: terminal, Markdown and HTML show the same."""

from collections.abc import Iterable, Sequence

from harness.analysis.gate import Verdict
from harness.analysis.night_values import CaseVerdict
from harness.report.figures import ABSENT, BY_NAME, figure
from harness.report.night_words import SPEED, change_text, counted, finding_of, one_line, outcome_text, worst_memory
from harness.report.sweep_rows import Rows
from harness.units import format_percent

TITLES = ("Case", "Outcome", "TFLOP/s/GPU", "Golden", "Change", "Peak memory", "Remark")
_RIGHT = (False, False, True, True, True, True, False)


def night_rows(cases: Sequence[CaseVerdict]) -> Rows:
    """A row for each of ``cases``."""
    return Rows(TITLES, _RIGHT, tuple(_row(case) for case in cases))


def remark_text(case: CaseVerdict) -> str:
    """What a row says in words: expectations, a missing golden, drift, retries; the reasons stand below the table."""
    return "; ".join(one_line(text) for text in _remarks(case))


def _row(case: CaseVerdict) -> tuple[str, ...]:
    speed = finding_of(case, SPEED)
    metric = BY_NAME[SPEED]
    now = speed.current if speed else metric.read(case.metrics) if case.metrics else None
    return (
        case.planned.name,
        outcome_text(case),
        figure(metric, now),
        figure(metric, speed.golden if speed else None),
        change_text(speed),
        _memory(case),
        remark_text(case),
    )


def _memory(case: CaseVerdict) -> str:
    """Of a case that ran out of memory the peak is only what it had reached."""
    finding = worst_memory(case)
    metric = BY_NAME[finding.metric if finding else "peak_allocated_bytes"]
    value = finding.current if finding else metric.read(case.metrics) if case.metrics else None
    if value is None:
        return ABSENT
    least = "at least " if case.outcome == "oom" else ""
    kind = "" if metric.name == "peak_allocated_bytes" else f" {metric.title.removeprefix('Peak ')}"
    change = f" ({format_percent(finding.change)})" if finding and finding.change is not None else ""
    return f"{least}{figure(metric, value)}{kind}{change}"


def _remarks(case: CaseVerdict) -> Iterable[str]:
    if case.remark:
        yield case.remark
    if case.runs and case.golden_path is None:
        yield "no golden"
    if case.drift:
        yield f"{counted(len(case.drift), 'difference')} from the golden's environment"
    retries = sum(run.purpose == "retry" for run in case.runs)
    if retries:
        yield "retried once" if retries == 1 else f"retried {retries} times"
    if any(finding.verdict is Verdict.IMPROVEMENT for finding in case.findings):
        yield "better than its golden"
