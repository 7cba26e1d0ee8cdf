"""Settles the outcome of a case, also near the band of its golden."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from harness.errors import BadRequestError, ExitCode
from harness.experiment.gpu import GPUS
from harness.judging.gate import Thresholds, Verdict
from harness.judging.metrics import Metric
from harness.night.history.record import LIMIT, CaseOutcome
from harness.night.history.series import Series
from harness.night.values import CaseFinding, CaseRun
from harness.records.golden import GoldenRecord
from harness.records.goldens import golden_dir, read_golden
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


@dataclass(frozen=True)
class GoldenBand:
    """``low`` to ``high`` are within ``threshold`` of ``value`` on either side; ``path`` says which golden."""

    path: Path
    value: float
    threshold: float

    @property
    def low(self) -> float:
        """The least that is within."""
        return self.value * (1 - self.threshold)

    @property
    def high(self) -> float:
        """The most that is within."""
        return self.value * (1 + self.threshold)


def golden_band(series: Series, metric: Metric, folder: Path | None = None) -> tuple[GoldenBand | None, str]:
    """The band of the GPU's default threshold, or None with the reason why there is none to show."""
    path = golden_dir(folder) / f"{series.case.partition(LIMIT)[0]}.json"
    if metric.gate is None:
        return None, f"{metric.name} is not gated"
    if not path.is_file():
        return None, f"no golden: {path} is not there"
    try:
        golden = read_golden(path)
    except BadRequestError as error:
        return None, error.message
    gpu = GPUS.get(golden.gpu)
    reason = _mismatch(golden, series, metric) if gpu else f"is for {golden.gpu}, which is no GPU type known here"
    if reason or gpu is None:
        return None, f"no golden to hold it to: {path} {reason}"
    threshold = Thresholds(gpu.timing_threshold, gpu.memory_threshold).of(metric.gate)
    return GoldenBand(path, golden.metrics[metric.name].value, threshold), ""


def _mismatch(golden: GoldenRecord, series: Series, metric: Metric) -> str:
    if metric.name not in golden.metrics:
        return f"has no {metric.name}"
    if golden.fingerprint not in (None, series.fingerprint):
        return "is for other settings"
    formulas = {record.formula_version for night in series.nights[-1:] for record in night.records}
    if metric.gate == "time" and golden.formula_version not in (None, *formulas):
        return f"has throughput by another formula, {golden.formula_version}"
    return ""
