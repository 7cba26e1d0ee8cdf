"""What became of a case in one word: from how its runs ended, then from what its figures say."""

from collections.abc import Sequence
from datetime import date

from harness.analysis.gate import Verdict
from harness.analysis.night.values import CaseFinding, CaseRun
from harness.errors import ExitCode
from harness.records.history import CaseOutcome
from harness.records.night import ExpectedFailureRecord

_EXIT_CODES: dict[CaseOutcome, ExitCode] = {
    "failed": ExitCode.RUN_FAILED,
    "oom": ExitCode.OUT_OF_MEMORY,
    "regression": ExitCode.REGRESSION,
    "inconclusive": ExitCode.INCONCLUSIVE,
    "improvement": ExitCode.OK,
    "pass": ExitCode.OK,
}
WORST_FIRST = tuple(_EXIT_CODES)
_BY_VERDICT: tuple[tuple[Verdict, CaseOutcome], ...] = (
    (Verdict.REGRESSION, "regression"),
    (Verdict.INCONCLUSIVE, "inconclusive"),
    (Verdict.IMPROVEMENT, "improvement"),
    (Verdict.PASS, "pass"),
)


def effective_runs(runs: Sequence[CaseRun]) -> tuple[CaseRun, ...]:
    """The runs that count: a retry stands in the place of the last run before it that a named fault of the machine ended."""
    kept = list[CaseRun]()
    for run in sorted(runs, key=lambda run: run.number):
        if run.purpose == "retry":
            cured = next((one for one in reversed(kept) if one.infrastructure), None)
            kept = [one for one in kept if one is not cured]
        kept.append(run)
    return tuple(kept)


def bad_end(runs: Sequence[CaseRun]) -> tuple[CaseOutcome, CaseRun] | None:
    """The worst end among ``runs``, and the first run that came to it; None where none failed or ran out of memory.

    A run without a record has failed: nothing says how it ended. So has one whose job was cancelled by hand.
    """
    failed = [run for run in runs if run.record is None or run.cancelled or run.record.status == "failed"]
    oom = [run for run in runs if run.record is not None and run.record.status == "oom"]
    if failed:
        return "failed", next((run for run in failed if not run.infrastructure), failed[0])
    return ("oom", oom[0]) if oom else None


def figures_outcome(findings: Sequence[CaseFinding]) -> tuple[CaseOutcome, str]:
    """Outcome of runs that ended well, and the finding behind it in words; inconclusive where nothing was gated."""
    for verdict, outcome in _BY_VERDICT:
        found = [finding for finding in findings if finding.verdict is verdict]
        if found:
            return outcome, "; ".join(_told(finding) for finding in found) if outcome != "pass" else ""
    return "inconclusive", "nothing was gated"


def exit_code_of(outcome: CaseOutcome, *, fail_on_improvement: bool = False) -> ExitCode:
    """The exit code that an outcome stands for, where it was not expected."""
    if outcome == "improvement" and fail_on_improvement:
        return ExitCode.IMPROVEMENT
    return _EXIT_CODES[outcome]


def expectation(
    expected: ExpectedFailureRecord | None, outcome: CaseOutcome, today: date, *, ended_well: bool
) -> tuple[bool, str]:
    """Whether the outcome was expected, and a remark where the suite's entry is out of date.

    ``ended_well``: the runs came to their end, so that a failure that was expected of them would have come.
    """
    if expected is None:
        return False, ""
    came, until = expected.outcome == outcome, date.fromisoformat(expected.until)
    if not came and not ended_well:
        return False, ""
    if not came:
        return False, f"expected {expected.outcome} did not come: remove the entry ({expected.reason})"
    if today > until:
        return False, f"expected {outcome} expired on {expected.until} ({expected.reason})"
    return True, f"expected until {expected.until}: {expected.reason}"


def _told(finding: CaseFinding) -> str:
    change = "" if finding.change is None else f" {finding.change:+.1%}"
    return f"{finding.metric}{change}" + (f": {finding.reason}" if finding.reason else "")
