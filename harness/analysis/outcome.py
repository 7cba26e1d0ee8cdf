"""One word and one exit code for a whole run: how it ended, and if it ended well, what the gate says."""

from typing import Literal

from harness.analysis.gate import Comparison, Verdict
from harness.errors import ExitCode
from harness.records.run import Status

Outcome = Literal["pass", "regression", "improvement", "oom", "failed", "inconclusive"]

_SIGTERM = 15


def comparison_outcome(comparison: Comparison, *, fail_on_improvement: bool = False) -> tuple[Outcome, ExitCode]:
    """Outcome and exit code of a comparison."""
    match comparison.outcome:
        case Verdict.REGRESSION:
            return "regression", ExitCode.REGRESSION
        case Verdict.INCONCLUSIVE:
            return "inconclusive", ExitCode.INCONCLUSIVE
        case Verdict.IMPROVEMENT:
            return "improvement", ExitCode.IMPROVEMENT if fail_on_improvement else ExitCode.OK
        case Verdict.PASS | Verdict.NOT_GATED:
            return "pass", ExitCode.OK


def run_outcome(
    status: Status, comparison: Comparison, *, fail_on_improvement: bool = False, signal: int | None = None
) -> tuple[Outcome, ExitCode]:
    """Outcome and exit code of a run. ``signal``: the one that interrupted it."""
    if status == "ok":
        return comparison_outcome(comparison, fail_on_improvement=fail_on_improvement)
    return ("oom" if status == "oom" else "failed"), status_exit_code(status, signal)


def status_exit_code(status: Status, signal: int | None = None) -> ExitCode:
    """Exit code of how a run ended, before it is judged. ``signal``: the one that interrupted it."""
    match status:
        case "ok":
            return ExitCode.OK
        case "oom":
            return ExitCode.OUT_OF_MEMORY
        case "failed":
            return ExitCode.RUN_FAILED
        case "interrupted":
            return ExitCode.TERMINATED if signal == _SIGTERM else ExitCode.INTERRUPTED
