"""Judges a training log of Megatron-Bridge or Megatron-LM against golden values of theirs."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import BadRequestError, ExitCode, Problems
from harness.imports.compare.convergence import LossLimits, judge_loss
from harness.imports.compare.speed import judge_speed, window_of
from harness.imports.compare.values import COUNTERS, METRIC, ForeignComparison, ForeignThresholds, Judged
from harness.judging.compare import WindowOptions
from harness.judging.gate import Comparison, Finding, Outcome, Verdict, compare_values, comparison_outcome, overall
from harness.judging.oom.first_failure import RankFailure, first_failure
from harness.records.foreign.bridge import OF_THE_FIRST_REPORT, bridge_report, write_actuals
from harness.records.foreign.golden import ForeignGolden
from harness.records.foreign.golden_file import Format, read_foreign_golden
from harness.records.foreign.log import ForeignLog, RankMemory, WorstRank
from harness.records.foreign.reader import opened_logs
from harness.records.logs.sources import log_sources

_NO_MEMORY = "no line '[Rank N] (after N iterations) memory' in the log"
_EVERY_ONE = "--log-memory-interval 1"


def judge_memory(log: ForeignLog, golden: ForeignGolden, allowed: ForeignThresholds) -> Judged:
    """One finding per counter that either side has."""
    against = _against_one_value if golden.format == "bridge" else _against_series
    each = [against(name, counter, log, golden, allowed) for name, counter in COUNTERS.items()]
    notes = dict.fromkeys(note for _, told in each for note in told)
    return Judged(tuple(finding for finding, _ in each if finding), tuple(notes))


def worst_ranks(log: ForeignLog) -> dict[str, WorstRank]:
    """The largest report of each counter over all ranks and iterations, by the metric's name."""
    found = {name: log.worst(counter) for name, counter in COUNTERS.items()}
    return {name: worst for name, worst in found.items() if worst is not None}


def _against_one_value(
    name: str, counter: str, log: ForeignLog, golden: ForeignGolden, allowed: ForeignThresholds
) -> tuple[Finding | None, list[str]]:
    report = bridge_report(log, counter, of_whole_run=golden.of_whole_run)
    stored = golden.memory.get(counter)
    current = _bytes(report, counter) if report else None
    if stored is None:
        return _only_current(name, current), []
    if current is None:
        return _missing(name, stored, allowed, _absent(log)), []
    finding = compare_values(METRIC[name], current, stored, allowed.memory)
    worst = log.worst(counter)
    later = []
    if report and worst and worst.value > current * (1 + allowed.memory) and counter in OF_THE_FIRST_REPORT:
        later = [
            f"{METRIC[name].title}: the golden is of a log's first report; after iteration {worst.iteration} rank "
            f"{worst.rank} has {worst.value / 1e9:.5g} GB ({worst.where})"
        ]
    return finding, later


def _against_series(
    name: str, counter: str, log: ForeignLog, golden: ForeignGolden, allowed: ForeignThresholds
) -> tuple[Finding | None, list[str]]:
    """Megatron-LM's goldens are of the last rank; the last that reports is on the same pipeline stage."""
    series, told = (
        golden.memory_by_iteration.get(counter),
        [one for one in log.memory if getattr(one, counter) is not None],
    )
    if not series:
        report = max(told, key=lambda one: _bytes(one, counter), default=None)
        return _only_current(name, _bytes(report, counter) if report else None), []
    both = [one for one in told if one.iteration in series]
    if not both:
        stored = series[max(series)]
        listed = ", ".join(str(number) for number in sorted({one.iteration for one in told})[:5])
        why = f"the log reports memory after iterations {listed}; the golden has no value of these ({_EVERY_ONE})"
        return _missing(name, stored, allowed, why if told else _absent(log)), []
    report = max(both, key=lambda one: (one.rank, one.iteration))
    finding = compare_values(METRIC[name], _bytes(report, counter), series[report.iteration], allowed.memory)
    where = f"rank {report.rank} after iteration {report.iteration} ({report.where})"
    return finding, [f"Memory: {where}; the golden is of the last rank"]


def _bytes(report: RankMemory, counter: str) -> int:
    value: int = getattr(report, counter)
    return value


def _only_current(name: str, current: int | None) -> Finding | None:
    if current is None:
        return None
    return Finding(name, current, None, None, None, Verdict.NOT_GATED, "the golden has no such value")


def _missing(name: str, stored: int, allowed: ForeignThresholds, why: str) -> Finding:
    finding = compare_values(METRIC[name], None, stored, allowed.memory)
    return replace(finding, verdict=Verdict.INCONCLUSIVE, reason=why)


def _absent(log: ForeignLog) -> str:
    return "no rank reports it in the log" if log.memory else _NO_MEMORY


def judge_log(
    log: ForeignLog,
    golden: ForeignGolden,
    window: WindowOptions,
    allowed: ForeignThresholds,
    loss_limits: LossLimits | None = None,
    failure: str | None = None,
) -> ForeignComparison:
    """All findings and the outcome. ``loss_limits`` None: losses are not held against the golden's.

    A log that is of no whole run, or in which a loss is NaN or missing, leaves nothing to conclude of speed and memory.
    ``failure``: how the job ended, where the log says that it failed.
    """
    steps = window_of(golden, window)
    speed, memory = judge_speed(log, golden, steps, allowed), judge_memory(log, golden, allowed)
    doubts = tuple(doubt for doubt in (failure, log.truncated, _missing_losses(log, golden)) if doubt)
    findings = (
        *_doubted((*speed.findings, *memory.findings), doubts),
        *_gradients(log),
        *(_losses(log, golden, loss_limits) if loss_limits else ()),
    )
    notes = (*log.notes, *golden.notes, *speed.notes, *memory.notes)
    comparison = Comparison(findings, overall(findings))
    return ForeignComparison(log, golden, steps, comparison, worst_ranks(log), doubts, notes)


def _doubted(findings: Iterable[Finding], doubts: tuple[str, ...]) -> list[Finding]:
    """Findings that were judged say what stands against that; reasons of their own go first."""
    if not doubts:
        return list(findings)
    return [
        one
        if one.verdict in (Verdict.NOT_GATED, Verdict.INCONCLUSIVE)
        else replace(one, change=None, verdict=Verdict.INCONCLUSIVE, reason="; ".join(doubts))
        for one in findings
    ]


def _missing_losses(log: ForeignLog, golden: ForeignGolden) -> str | None:
    """Both trainers leave the loss out of the line where it is NaN."""
    due = [one for one in log.iterations if one.skipped_iterations == 0]
    broken = [one for one in due if one.loss is None or one.is_loss_broken]
    has_losses = golden.has_loss or any(one.loss is not None for one in due)
    if not broken or not has_losses:
        return None
    first = broken[0]
    what = "missing, as where it is NaN" if first.loss is None else f"{first.loss}"
    if first.nan_iterations:
        what = f"NaN in {first.nan_iterations} iterations"
    rest = f" and of {len(broken) - 1} more" if len(broken) > 1 else ""
    return f"the loss of iteration {first.number}{rest} is {what} ({first.where})"


def _gradients(log: ForeignLog) -> tuple[Finding, ...]:
    """The norm of the gradients must be a number wherever it is printed. The value is how many are none."""
    told = [one for one in log.iterations if one.grad_norm is not None]
    if not told:
        return ()
    broken = [one for one in told if one.grad_norm is not None and not math.isfinite(one.grad_norm)]
    if not broken:
        return (Finding("grad_norm_non_finite", 0, None, None, 0, Verdict.PASS, f"{len(told)} iterations"),)
    first = broken[0]
    reason = f"{len(broken)} of {len(told)}, first {first.grad_norm} in iteration {first.number} ({first.where})"
    return (Finding("grad_norm_non_finite", len(broken), None, None, 0, Verdict.REGRESSION, reason),)


def _losses(log: ForeignLog, golden: ForeignGolden, limits: LossLimits) -> tuple[Finding, ...]:
    """All steps of which the golden has a loss."""
    known = {one.number: one.loss for one in log.iterations}
    steps = [number for number, step in golden.steps.items() if step.loss is not None]
    current = [known.get(number) for number in steps]
    return judge_loss(steps, current, [step.loss for step in golden.steps.values() if step.loss is not None], limits)


_NAME_ONE = "name a golden file of Megatron-Bridge or Megatron-LM; --actuals FILE makes one of the log"


@dataclass(frozen=True, kw_only=True)
class ForeignRequest:
    """What to hold against what, and how strictly. ``golden`` None: only write ``actuals``."""

    logs: tuple[str, ...]
    golden: Path | None
    form: Format
    window: WindowOptions
    thresholds: ForeignThresholds
    loss_limits: LossLimits | None
    fail_on_improvement: bool
    actuals: Path | None


@dataclass(frozen=True)
class ForeignAnswer:
    """What came of it. ``comparison`` None: there was nothing to compare with. ``actuals``: the file that was written."""

    log: ForeignLog
    comparison: ForeignComparison | None
    outcome: Outcome
    exit_code: ExitCode
    actuals: Path | None = None


def compare_foreign(request: ForeignRequest) -> ForeignAnswer:
    """Read, write the actuals, judge; in this order, so that a golden that cannot be read does not lose them.

    A log without iterations leaves no actuals; one that is not of a whole run is inconclusive also without a golden.
    """
    _require_files(request)
    reader, lines = opened_logs(request.logs)
    failed = first_failure(lines)
    log = reader.finish()
    written = request.actuals if log.iterations else None
    if written:
        write_actuals(written, log)
    if request.golden is None:
        cut = _is_cut_short(log)
        code = ExitCode.INCONCLUSIVE if cut else ExitCode.OK
        return ForeignAnswer(log, None, "inconclusive" if cut else "pass", code, written)
    golden = _golden(request.golden, request.form, written)
    failure = _told(failed.failure) if failed and _is_cut_short(log) else None
    judged = judge_log(log, golden, request.window, request.thresholds, request.loss_limits, failure)
    outcome, exit_code = comparison_outcome(judged.comparison, fail_on_improvement=request.fail_on_improvement)
    return ForeignAnswer(log, judged, outcome, exit_code, written)


def _require_files(request: ForeignRequest) -> None:
    """BadRequestError for logs that are not there; with a golden that is not there either, it names both."""
    problems = Problems()
    with problems.collecting():
        log_sources(request.logs)
    if problems.found and request.golden is not None:
        with problems.collecting():
            _golden(request.golden, request.form, None)
    problems.raise_if_any()


def _golden(path: Path, form: Format, written: Path | None) -> ForeignGolden:
    """BadRequestError for one that cannot be read; it says what was written before."""
    try:
        return read_foreign_golden(path, form)
    except BadRequestError as error:
        told = f"; {written} was written" if written else ""
        remedy = error.remedy or _NAME_ONE
        raise BadRequestError(error.message, remedy=remedy + told) from error


def _is_cut_short(log: ForeignLog) -> bool:
    """Whether the job did not get to its end; a failure that it got over is no reason to doubt it."""
    return not log.iterations or log.truncated is not None


def _told(failure: RankFailure) -> str:
    who = "a rank" if failure.rank is None else f"rank {failure.rank}"
    what = "ran out of memory" if failure.kind == "oom" else "failed"
    return f"{who} {what} ({failure.where}): {failure.text.splitlines()[0][:200] if failure.text else ''}"
