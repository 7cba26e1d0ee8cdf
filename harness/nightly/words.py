"""Writes the short texts of a night's reports: outcomes, changes with their evidence, counts, the answer."""

from collections import Counter
from collections.abc import Iterable, Sequence

from harness.errors import ExitCode
from harness.judge.gate import WORST_FIRST, Verdict
from harness.nightly.values import SPEED, CaseFinding, CaseVerdict, NightVerdict, SharedChange
from harness.records.metrics import BY_NAME
from harness.show.figures import ABSENT, figure
from harness.units import counted, format_percent, utc_time

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
    plan = verdict.plan
    only = f", only {', '.join(plan.only)}" if plan.only else ""
    start, end = (f"{utc_time(time):%Y-%m-%d %H:%M}" for time in (plan.started_at, verdict.finished_at))
    return f"{plan.suite}{only}; {start} to {end} UTC"


def answer(verdict: NightVerdict) -> str:
    """Return ``REGRESSION in 1 of 12 cases: llama3_8b.mlp (TFLOP/s/GPU -8.1 %, allowed 5 %)``, the worst case first."""
    worst_first = sorted(filter(is_red, verdict.cases), key=lambda case: WORST_FIRST.index(case.outcome))
    parts = (
        _shared(verdict.shared) if verdict.shared else "",
        _some(map(_with_change, worst_first)) if worst_first else _calm(verdict.cases),
        _without_time([case for case in verdict.cases if case.counted]),
        "without pairs of last-good" if verdict.plan.no_pairs else "",
        f"unfinished: {counted(verdict.num_due, 'run')} still to do" if verdict.num_due else "",
    )
    stopped = verdict.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED)
    num = sum(case.outcome == verdict.outcome for case in worst_first)
    of = f" in {num} of {counted(len(verdict.cases), 'case')}" if num and not stopped else ""
    return f"{'INTERRUPTED' if stopped else verdict.outcome.upper()}{of}: {'; '.join(filter(None, parts))}"


def _with_change(case: CaseVerdict) -> str:
    """Return ``dense.none (Peak allocated +9.2 %, allowed 5 % by default)`` for a regression, else the case's name."""
    found = next((finding for finding in case.findings if finding.verdict is Verdict.REGRESSION), None)
    if case.outcome != "regression" or found is None:
        return case.planned.name
    paired = case.pairs.of(found.metric) if case.pairs else None
    why = case.pairs.text_of(paired) if case.pairs and paired else _judged(found)
    return f"{case.planned.name} ({BY_NAME[found.metric].title} {why})"


def _judged(finding: CaseFinding) -> str:
    change = "" if finding.judged_change is None else format_percent(finding.judged_change)
    return f"{change}: {one_line(finding.reason)}" if finding.reason else f"{change}{allowed_text(finding)}"


def allowed_text(finding: CaseFinding) -> str:
    """Return ``, allowed 5 % by the suite``; empty without a threshold."""
    return "" if finding.threshold is None else f", allowed {threshold_text(finding)}"


def _some(names: Iterable[str]) -> str:
    first, rest = (every := list(names))[:_MANY], len(every[_MANY:])
    return f"{', '.join(first)}{f' and {rest} more' * bool(rest)}"


def _shared(shared: SharedChange) -> str:
    """``3 of 3 cases: -5.1 %``: one cause, and one line."""
    doubt = ", not yet repeated" * shared.is_doubt
    return f"{shared.num_cases} of {shared.num_judged} cases: {format_percent(shared.change)}{doubt}"


def _calm(cases: Iterable[CaseVerdict]) -> str:
    speeds = ((case.planned.name, finding_of(case, SPEED)) for case in cases)
    far = [f"{name} ({format_percent(found.judged_change or 0.0)})" for name, found in speeds
           if found and found.is_beyond]  # fmt: skip
    moved = f"; changed by more than the threshold: {_some(far)}" if far else ""
    return f"no case needs attention{moved}"


def _without_time(measured: Sequence[CaseVerdict]) -> str:
    """Return in how many cases no time was judged, and why in one, at best a golden without throughput; or nothing."""
    lacking = [(case.planned.name, why) for case in measured if (why := _unjudged(case))]
    if not lacking:
        return ""
    shown = min(lacking, key=lambda each: each[1] != _BLIND)
    return f"no time judged in {len(lacking)} of {counted(len(measured), 'case')}: {': '.join(shown)}"


_BLIND = "the golden has no throughput"  # it stays so every night until someone promotes again
_NO_GOLDEN = "no golden yet: mbr-perf golden promote stores tonight's values"


def _unjudged(case: CaseVerdict) -> str:
    """Return why the case's throughput has no verdict; empty if it has one."""
    finding = finding_of(case, SPEED)
    if finding is None:
        return "no throughput was measured"
    if case.pairs and case.pairs.of(SPEED):
        return ""
    if case.golden_path is None:
        return "the golden cannot be read" if case.is_golden_damaged else _NO_GOLDEN
    if finding.golden is None:
        return _BLIND
    is_open = finding.verdict is Verdict.INCONCLUSIVE and not (finding.evidence and finding.evidence.is_suspicious)
    return one_line(finding.reason) if is_open or finding.verdict is Verdict.NOT_GATED else ""


def finding_of(case: CaseVerdict, metric: str) -> CaseFinding | None:
    """Return the case's finding about that metric, or None."""
    return next((finding for finding in case.findings if finding.metric == metric), None)


def change_text(finding: CaseFinding) -> str:
    """Return ``-3.4 % from the median of 12 nights, 7 runs``; absent without two numbers."""
    if finding.change is None or finding.judged_change is None:
        return ABSENT
    evidence, change = finding.evidence, format_percent(finding.judged_change)
    if evidence is None:
        return change
    level = f"median of {evidence.num_nights} nights" if evidence.num_nights else "golden"
    return f"{change} from the {level}, {counted(evidence.num_runs, 'run')}"


def finding_text(finding: CaseFinding) -> str:
    """Describe one metric in a sentence: both values, change, evidence, threshold, and its reason."""
    metric = BY_NAME[finding.metric]
    values = f"{metric.title} {figure(metric, finding.current)}, golden {figure(metric, finding.golden)}"
    change = f": {change_text(finding)}{allowed_text(finding)}" if finding.change is not None else ""
    return f"{values}{change}{f'; {one_line(finding.reason)}' if finding.reason else ''}"


def threshold_text(finding: CaseFinding) -> str:
    """Return ``5 % by the suite``: what decides."""
    return ABSENT if finding.threshold is None else f"{finding.threshold * 100:.3g} % by {finding.allowed_by}"


def one_line(text: str) -> str:
    """Return the text without line breaks: for a table's cell or a line of its own."""
    return "; ".join(" ".join(line.split()) for line in text.splitlines() if line.strip())
