"""Rows and cells of a night's tables."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.judging.gate import Verdict
from harness.judging.metrics import cell_figure
from harness.night.values import CaseVerdict
from harness.night.words import SPEED, change_text, finding_of, one_line, outcome_text, worst_memory
from harness.showing.figures import ABSENT, BY_NAME, cap_figure, clock_figure, figure
from harness.showing.markup import escape
from harness.units import counted, format_percent

_Read = Callable[[CaseVerdict], str]


@dataclass(frozen=True)
class Rows:
    """Titles, which of them are aligned to the right, and the texts of every case in the plan's order."""

    titles: tuple[str, ...]
    right: tuple[bool, ...]
    texts: tuple[tuple[str, ...], ...]


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


# Tints of the palette of Okabe and Ito, on which black text reads well; what is red is also bold.
CELL_STYLE = """
.o-pass { background: #d5efe5; } .o-improvement { background: #d3ebf9; } .o-inconclusive { background: #fbf6c1; }
.o-regression { background: #f6b98f; font-weight: bold; } .o-failed { background: #e8a0a0; font-weight: bold; }
.o-oom { background: #e7bcd3; font-weight: bold; } .o-expected { background: #e4e4e4; font-weight: normal; }
.o-none { background: #fff; color: #777; }
"""
_SIGNS = {
    "pass": "\N{CHECK MARK}", "improvement": "\N{BLACK UP-POINTING TRIANGLE}", "inconclusive": "?",
    "regression": "\N{BLACK DOWN-POINTING TRIANGLE}", "failed": "\N{MULTIPLICATION X}", "oom": "\N{BLACK SQUARE}",
}  # fmt: skip


def outcome_cell(outcome: str, text: str, *, is_expected: bool, link: str = "", beside: str = "") -> str:
    """A table cell: the sign of ``outcome``, ``text`` (linked where there is a ``link``), and small print ``beside``."""
    shown = escape(f"{_SIGNS.get(outcome, '')} {text}")
    linked = f'<a href="{escape(link)}">{shown}</a>' if link else shown
    small = f"<br><small>{escape(beside)}</small>" if beside else ""
    kind = "expected" if is_expected else outcome if outcome in _SIGNS else "none"
    return f'<td class="o-{kind}">{linked}{small}</td>'
