"""What the reports of a night say in words: outcomes, changes with their evidence, counts, the answer."""

from collections import Counter
from collections.abc import Iterable

from harness.analysis.gate import Verdict
from harness.analysis.night_values import CaseFinding, CaseVerdict, Evidence, NightVerdict
from harness.errors import ExitCode
from harness.report.figures import ABSENT, BY_NAME, figure
from harness.units import format_percent

SPEED = "tflops_per_gpu"
MUST_EQUAL = "must be equal"
# Below this a p-value is a statement about the tails of a distribution that nobody has measured.
_LEAST_P = 1e-9
_MANY = 5
_ORDER = (Verdict.REGRESSION, Verdict.INCONCLUSIVE, Verdict.IMPROVEMENT, Verdict.PASS, Verdict.NOT_GATED)


def is_red(case: CaseVerdict) -> bool:
    """Whether somebody has to look: what the suite expected is not red."""
    return case.exit_code is not ExitCode.OK


def red_cases(verdict: NightVerdict) -> tuple[CaseVerdict, ...]:
    """Cases to look at, in the plan's order."""
    return tuple(case for case in verdict.cases if is_red(case))


def outcome_text(case: CaseVerdict) -> str:
    """``regression``, ``oom (expected)``, ``failed (infrastructure)``, ``refused``."""
    word = "refused" if case.planned.refused else case.outcome
    return marked(word, is_infrastructure=case.is_infrastructure, is_expected=case.is_expected)


def marked(word: str, *, is_infrastructure: bool, is_expected: bool) -> str:
    """The word of an outcome with what softens it."""
    marks = [mark for mark, holds in (("infrastructure", is_infrastructure), ("expected", is_expected)) if holds]
    return f"{word} ({', '.join(marks)})" if marks else word


def headline(verdict: NightVerdict) -> str:
    """``8 cases: 3 pass, 1 regression, 1 oom (expected)``, the most frequent first."""
    counts = Counter(outcome_text(case) for case in verdict.cases)
    told = ", ".join(f"{number} {word}" for word, number in counts.most_common())
    return f"{counted(len(verdict.cases), 'case')}: {told}" if told else "no cases"


def about(verdict: NightVerdict) -> str:
    """Which night: suite, part of it, when."""
    plan = verdict.plan
    parts = [
        plan.suite,
        f"shard {plan.shard}" if plan.shard else "",
        f"only {', '.join(plan.only)}" if plan.only else "",
    ]
    return f"{'; '.join(part for part in parts if part)}; {plan.started_at} to {verdict.finished_at}"


def answer(verdict: NightVerdict) -> str:
    """The one line that a reader in a hurry gets: outcome, exit code, what to look at."""
    red = [case.planned.name for case in red_cases(verdict)]
    more = f" and {len(red) - _MANY} more" if len(red) > _MANY else ""
    named = f"look at {', '.join(red[:_MANY])}{more}" if red else "nothing to look at"
    due = f"; unfinished: {counted(verdict.num_due, 'run')} still to do" if verdict.num_due else ""
    return f"{verdict.outcome.upper()} (exit {int(verdict.exit_code)}): {named}{due}"


def finding_of(case: CaseVerdict, metric: str) -> CaseFinding | None:
    """The case's finding about that metric; None where there is none."""
    return next((finding for finding in case.findings if finding.metric == metric), None)


def worst_memory(case: CaseVerdict) -> CaseFinding | None:
    """The memory finding that says most: the worst verdict, of equals the first of the metric table."""
    found = [finding for finding in case.findings if BY_NAME[finding.metric].gate == "memory"]
    return min(found, key=lambda finding: _ORDER.index(finding.verdict), default=None)


def change_text(finding: CaseFinding | None) -> str:
    """``-3.4 %, p 2e-5, 7 against 5 runs``; absent where there are not two numbers."""
    if finding is None or finding.change is None:
        return ABSENT
    told = [format_percent(finding.change), *(_evidence(finding.evidence) if finding.evidence else ())]
    return ", ".join(told)


def finding_text(finding: CaseFinding) -> str:
    """One metric in a sentence: both values, change, evidence and threshold."""
    metric = BY_NAME[finding.metric]
    values = f"{metric.title} {figure(metric, finding.current)} against {figure(metric, finding.golden)}"
    change = f": {change_text(finding)}" if finding.change is not None else ""
    noise = f"; {_noise(finding.evidence)}" if finding.evidence and finding.evidence.noise is not None else ""
    return f"{values}{change}{_threshold(finding)}{noise}"


def threshold_text(finding: CaseFinding) -> str:
    """The change that alone calls for attention, without a sign; absent where nothing is gated."""
    if finding.threshold is None:
        return ABSENT
    return MUST_EQUAL if BY_NAME[finding.metric].better == "equal" else f"{finding.threshold * 100:.3g} %"


def counted(number: int, noun: str) -> str:
    """``1 case``, ``2 cases``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def one_line(text: str) -> str:
    """The text without line breaks: for a table's cell or a line of its own."""
    return "; ".join(" ".join(line.split()) for line in text.splitlines() if line.strip())


def _evidence(evidence: Evidence) -> Iterable[str]:
    if evidence.p_value is not None:
        yield (
            f"p < {_LEAST_P:.0e}".replace("e-0", "e-")
            if evidence.p_value < _LEAST_P
            else f"p {evidence.p_value:.2g}".replace("e-0", "e-")
        )
    yield f"{evidence.num_runs} against {counted(evidence.num_golden_runs, 'run')}"


def _noise(evidence: Evidence) -> str:
    basis = f" ({evidence.basis})" if evidence.basis else ""
    return f"noise of one run {(evidence.noise or 0) * 100:.2g} %{basis}"


def _threshold(finding: CaseFinding) -> str:
    text = threshold_text(finding)
    return "" if finding.change is None or text == ABSENT else f"; {'' if text == MUST_EQUAL else 'threshold '}{text}"
