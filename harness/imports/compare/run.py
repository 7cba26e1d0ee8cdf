"""A training log of Megatron-Bridge or Megatron-LM held against golden values of theirs."""

from dataclasses import dataclass
from pathlib import Path

from harness.errors import BadRequestError, ExitCode, Problems
from harness.imports.compare.convergence import LossLimits
from harness.imports.compare.judge import judge_log
from harness.imports.compare.values import ForeignComparison, ForeignThresholds
from harness.judging.compare import WindowOptions
from harness.judging.gate import Outcome, comparison_outcome
from harness.judging.oom.first_failure import RankFailure, first_failure
from harness.records.foreign.bridge import write_actuals
from harness.records.foreign.golden import ForeignGolden
from harness.records.foreign.golden_file import Format, read_foreign_golden
from harness.records.foreign.log import ForeignLog
from harness.records.foreign.reader import opened_logs
from harness.records.logs.sources import log_sources

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
