"""The table of a night as text, one row per case in the plan's order: terminal, Markdown and HTML show the same."""

from collections.abc import Callable, Iterable, Sequence

from harness.analysis.gate import Verdict
from harness.analysis.night.values import CaseVerdict
from harness.analysis.speed import cell_figure
from harness.report.figures import ABSENT, BY_NAME, cap_figure, clock_figure, figure
from harness.report.night_words import SPEED, change_text, finding_of, one_line, outcome_text, worst_memory
from harness.report.sweep_rows import Rows
from harness.units import counted, format_percent

_Read = Callable[[CaseVerdict], str]


def night_rows(cases: Sequence[CaseVerdict], *, narrow: bool = False) -> Rows:
    """A row for each of ``cases``; ``narrow`` leaves out what fits on no small screen."""
    columns = _NARROW if narrow else _wide(cases)
    texts = tuple(tuple(read(case) for _, read, _ in columns) for case in cases)
    return Rows(tuple(title for title, _, _ in columns), tuple(right for _, _, right in columns), texts)


def _wide(cases: Sequence[CaseVerdict]) -> tuple[tuple[str, _Read, bool], ...]:
    """Clocks only where the sampler read some."""
    clocks = tuple(column for column in _CLOCKS if any(column[1](case) != ABSENT for case in cases))
    return (*_WIDE, *clocks, _REMARK)


def remark_text(case: CaseVerdict) -> str:
    """What a row says in words: expectations, a missing golden, drift, retries; the reasons stand below the table."""
    return "; ".join(one_line(text) for text in _remarks(case))


def _speed(case: CaseVerdict) -> str:
    finding, metric = finding_of(case, SPEED), BY_NAME[SPEED]
    return figure(metric, finding.current if finding else cell_figure(metric, case.metrics, case.speed))


def _golden(case: CaseVerdict) -> str:
    finding = finding_of(case, SPEED)
    return figure(BY_NAME[SPEED], finding.golden if finding else None)


def _change(case: CaseVerdict) -> str:
    return change_text(finding_of(case, SPEED))


def _bare_change(case: CaseVerdict) -> str:
    """Without the evidence, which stands below the table where it matters."""
    finding = finding_of(case, SPEED)
    return ABSENT if finding is None or finding.change is None else format_percent(finding.change)


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


def _sm_clock(case: CaseVerdict) -> str:
    return clock_figure(case.metrics.clocks.sm_clock_mhz if case.metrics and case.metrics.clocks else None)


def _power_cap(case: CaseVerdict) -> str:
    return cap_figure(case.metrics.clocks.power_cap_share if case.metrics and case.metrics.clocks else None)


def _remarks(case: CaseVerdict) -> Iterable[str]:
    if case.remark:
        yield case.remark
    if case.runs and case.golden_path is None:
        yield "golden cannot be read" if case.is_golden_damaged else "no golden"
        yield from sorted(set(_short(case)))
    if case.drift:
        yield f"{counted(len(case.drift), 'difference')} from the golden's environment"
    retries = sum(run.purpose == "retry" for run in case.runs)
    if retries:
        yield "retried once" if retries == 1 else f"retried {retries} times"
    better = [BY_NAME[one.metric].title for one in case.findings if one.verdict is Verdict.IMPROVEMENT]
    if better:
        yield f"{', '.join(better)} better than its golden"


def _short(case: CaseVerdict) -> Iterable[str]:
    """Why a speed is one of fewer steps than asked for; a golden's findings say it themselves."""
    return (text for name, text in case.metrics.problems.items() if name == "step_time_s") if case.metrics else ()


_FIRST: tuple[tuple[str, _Read, bool], ...] = (
    ("Case", lambda case: case.planned.name, False),
    ("Outcome", outcome_text, False),
    ("TFLOP/s/GPU", _speed, True),
)
_MEMORY = ("Peak memory", _memory, True)
_NARROW = (*_FIRST, ("Change", _bare_change, True), _MEMORY)
_WIDE = (*_FIRST, ("Golden", _golden, True), ("Change", _change, True), _MEMORY)
_CLOCKS: tuple[tuple[str, _Read, bool], ...] = (("SM clock", _sm_clock, True), ("Power cap", _power_cap, True))
_REMARK: tuple[str, _Read, bool] = ("Remark", remark_text, False)
