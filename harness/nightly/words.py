"""Writes the short texts of a night's reports: outcomes, changes with their evidence, counts, the answer."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from harness.errors import ExitCode
from harness.judge.gate import WORST_FIRST, Verdict, worst
from harness.nightly.values import SPEED, CaseFinding, CaseVerdict, NightVerdict
from harness.records.metrics import BY_NAME
from harness.show.figures import ABSENT, figure
from harness.units import counted, format_percent

MUST_EQUAL = "must be equal"
_MANY = 5


def is_red(case: CaseVerdict) -> bool:
    """Return whether the case needs attention. An outcome that the suite expects is not red."""
    return case.exit_code is not ExitCode.OK


def outcome_text(case: CaseVerdict) -> str:
    """Return ``regression``, ``oom (expected)``, ``failed (infrastructure)`` or ``refused``."""
    marks = (("infrastructure", case.is_infrastructure), ("expected", case.is_expected))
    marked = ", ".join(mark for mark, holds in marks if holds)
    return f"{'refused' if case.planned.refused else case.outcome}{f' ({marked})' if marked else ''}"


def headline(verdict: NightVerdict) -> str:
    """Return ``8 cases: 3 pass, 1 regression, 1 oom (expected)``, the most frequent first."""
    counts = Counter(outcome_text(case) for case in verdict.cases)
    outcomes = ", ".join(f"{number} {word}" for word, number in counts.most_common())
    return f"{counted(len(verdict.cases), 'case')}: {outcomes}" if outcomes else "no cases"


def about(verdict: NightVerdict) -> str:
    """Return the suite, its chosen cases, and the start and end of the night."""
    plan, times = verdict.plan, (verdict.plan.started_at, verdict.finished_at)
    only = f", only {', '.join(plan.only)}" if plan.only else ""
    start, end = (datetime.fromisoformat(time).astimezone(UTC) for time in times)
    day = "" if start.date() == end.date() else f"{end:%Y-%m-%d} "
    return f"{plan.suite}{only}; {start:%Y-%m-%d %H:%M} to {day}{end:%H:%M} UTC"


def answer(verdict: NightVerdict) -> str:
    """Return ``REGRESSION in 1 of 12 cases: llama3_8b.mlp (TFLOP/s/GPU -8.1 %, allowed 5 %)``, the worst case first."""
    worst = sorted(filter(is_red, verdict.cases), key=lambda case: WORST_FIRST.index(case.outcome))
    red = [_with_change(case) if verdict.shared is None else case.planned.name for case in worst]
    parts = (
        _shared(verdict),
        _some(red) if red else "no case needs attention",
        "" if red else _moved(verdict),  # red cases need the room
        _without_time([case for case in verdict.cases if case.counted]),
        "without pairs of last-good" if verdict.plan.no_pairs else "",
    )
    due = f"; unfinished: {counted(verdict.num_due, 'run')} still to do" if verdict.num_due else ""
    stopped = verdict.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED)
    word = "INTERRUPTED" if stopped else verdict.outcome.upper()
    num = sum(case.outcome == verdict.outcome for case in worst)
    of = f" in {num} of {counted(len(verdict.cases), 'case')}" if num and not stopped else ""
    return f"{word}{of}: {'; '.join(filter(None, parts))}{due}"


def _with_change(case: CaseVerdict) -> str:
    """Return ``dense.none (Peak allocated +9.2 %, allowed 5 % by default)`` for a regression, else the case's name."""
    found = (
        each for each in case.findings if each.verdict is Verdict.REGRESSION and (case.pairs or each.change is not None)
    )
    worst = next(found, None) if case.outcome == "regression" else None
    if worst is None:
        return case.planned.name
    paired = case.pairs.of(worst.metric) if case.pairs else None
    if paired and paired.change is not None:
        change = f"{format_percent(paired.change)} against the old build{allowed_text(paired)}"
    else:
        change = f"{format_percent(worst.judged_change or 0.0)}{_why(worst)}"
    return f"{case.planned.name} ({BY_NAME[worst.metric].title} {change})"


def _why(finding: CaseFinding) -> str:
    of_nights = " from its nights" * bool(finding.evidence and finding.evidence.num_nights)
    is_explained = finding.reason and not (finding.evidence and finding.is_beyond)
    return f"{of_nights}{f': {one_line(finding.reason)}' if is_explained else allowed_text(finding)}"


def allowed_text(finding: CaseFinding) -> str:
    """Return ``, allowed 5 % by the suite``; empty without a threshold."""
    text = threshold_text(finding)
    return "" if text == ABSENT else f", {'' if text == MUST_EQUAL else 'allowed '}{text}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MANY} more" if len(names) > _MANY else ""
    return f"{', '.join(names[:_MANY])}{more}"


def _shared(verdict: NightVerdict) -> str:
    """``all cases: -5.1 %``: one cause, and one line."""
    shared = verdict.shared
    if shared is None:
        return ""
    who = "all cases" if shared.num_cases == shared.num_judged else f"{shared.num_cases} of {shared.num_judged} cases"
    return f"{who}: {format_percent(shared.change)}{', not yet repeated' if shared.is_doubt else ''}"


def _moved(verdict: NightVerdict) -> str:
    far = [text for case in verdict.cases for text in _far(case)]
    return f"changed by more than the threshold: {_some(far)}" if far else ""


def _far(case: CaseVerdict) -> Iterable[str]:
    """Yield ``mlp (+6.1 %)`` with the first gated metric that moved by more than its threshold, if one did."""
    far = [each for each in case.findings if each.is_beyond or (each.evidence and each.evidence.is_suspicious)]
    for found in far[:1]:
        paired = case.pairs.of(found.metric) if case.pairs else None
        as_old = f", {format_percent(paired.change)} against the old build" if paired and paired.change else ""
        yield f"{case.planned.name} ({format_percent(found.judged_change or 0.0)}{as_old})"


def _without_time(measured: Sequence[CaseVerdict]) -> str:
    """Return why no time was judged, or which goldens have none."""
    if measured and not any(case.golden_path or case.is_golden_damaged for case in measured):
        return "no golden yet: mbr-perf golden promote stores tonight's values"
    if measured and all(map(_unjudged, measured)):
        found = finding_of(measured[0], SPEED)
        return f"{'time in doubt' if found and found.evidence else 'no time was judged'}: {_unjudged(measured[0])}"
    lacking = [case.planned.name for case in measured if _unjudged(case) == _NO_TIME]
    return f"the golden of {_some(lacking)} has no throughput" if lacking else ""


_NO_TIME = "the golden holds no time"


def _unjudged(case: CaseVerdict) -> str:
    """Return why the case's throughput has no verdict; empty if it has one."""
    finding = finding_of(case, SPEED)
    if finding is None:
        return "no throughput was measured"
    if case.pairs and case.pairs.of(SPEED):
        return ""
    if case.is_golden_damaged:
        return "the golden cannot be read"
    if case.golden_path and finding.golden is None:
        return _NO_TIME
    is_open = finding.verdict is Verdict.INCONCLUSIVE and not (finding.evidence and finding.evidence.is_suspicious)
    if is_open or finding.verdict is Verdict.NOT_GATED:
        return one_line(finding.reason) or "no reason is recorded"
    return ""


def finding_of(case: CaseVerdict, metric: str) -> CaseFinding | None:
    """Return the case's finding about that metric, or None."""
    return next((finding for finding in case.findings if finding.metric == metric), None)


def worst_memory(case: CaseVerdict) -> CaseFinding | None:
    """Return the memory finding with the worst verdict; among equals, the first in the metric table."""
    return worst(finding for finding in case.findings if BY_NAME[finding.metric].gate == "memory")


def change_text(finding: CaseFinding | None) -> str:
    """Return ``-3.4 % from the median of 12 nights, 7 runs``; absent without two numbers."""
    if finding is None or finding.change is None or finding.judged_change is None:
        return ABSENT
    evidence, change = finding.evidence, format_percent(finding.judged_change)
    if evidence is None:
        return change
    level = f"median of {evidence.num_nights} nights" if evidence.num_nights else "golden"
    return f"{change} from the {level}, {counted(evidence.num_runs, 'run')}"


def finding_text(finding: CaseFinding) -> str:
    """Describe one metric in a sentence: both values, change, evidence, threshold, and its reason or noise."""
    metric = BY_NAME[finding.metric]
    values = f"{metric.title} {figure(metric, finding.current)}, golden {figure(metric, finding.golden)}"
    change = f": {change_text(finding)}" if finding.change is not None else ""
    reason = f"; {one_line(finding.reason)}" if finding.reason else ""
    allowed = allowed_text(finding) if finding.change is not None else ""
    return f"{values}{change}{allowed}{reason}"


def threshold_text(finding: CaseFinding) -> str:
    """Return ``5 % by the suite``: what decides."""
    if finding.threshold is None:
        return ABSENT
    if BY_NAME[finding.metric].better == "equal":
        return MUST_EQUAL
    return f"{finding.threshold * 100:.3g} % by {finding.allowed_by}"


def one_line(text: str) -> str:
    """Return the text without line breaks: for a table's cell or a line of its own."""
    return "; ".join(" ".join(line.split()) for line in text.splitlines() if line.strip())
