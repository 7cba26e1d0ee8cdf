"""Compares a training log of Megatron-Bridge or Megatron-LM with their golden values."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from harness.compare.convergence import LossLimits, judge_loss
from harness.compare.sides import Side, golden_of, read_side, require_logs
from harness.compare.speed import judge_speed, window_of
from harness.compare.values import COUNTERS, METRIC, ForeignComparison, Window
from harness.errors import BadRequestError, ExitCode, Problems
from harness.experiment.experiment import MIN_STEPS
from harness.failures.first_failure import FirstFailure
from harness.foreign.bridge_goldens import OF_THE_FIRST_REPORT, bridge_report, write_actuals
from harness.foreign.golden import ForeignGolden
from harness.foreign.golden_file import Format, read_foreign_golden
from harness.foreign.log import ForeignLog, RankMemory, WorstRank
from harness.imports.job import failure_sentence
from harness.judge.compare import WindowOptions
from harness.judge.gate import (
    Comparison,
    Finding,
    Outcome,
    Thresholds,
    Verdict,
    compare_values,
    comparison_outcome,
    overall,
)
from harness.judge.plausible import impossible_golden, impossible_series
from harness.measure.logged import contradictions_text, logged_arguments
from harness.records.golden import differing, spec_like
from harness.records.goldens import golden_file

_NO_MEMORY = "no line '[Rank N] (after N iterations) memory' in the log"
_EVERY_ITERATION = "--log-memory-interval 1"


def judge_memory(log: ForeignLog, golden: ForeignGolden, allowed: Thresholds) -> tuple[list[Finding], dict[str, None]]:
    """Return a finding for every counter that either side has, and notes."""
    compare = _compare_series if golden.format == "megatron-lm" else _compare_value
    each = [compare(name, counter, log, golden, allowed) for name, counter in COUNTERS.items()]
    return [finding for finding, _ in each if finding], dict.fromkeys(note for _, lines in each for note in lines)


def _worst_ranks(log: ForeignLog) -> dict[str, WorstRank]:
    """Return the largest report of each counter over all ranks and iterations, by the metric's name."""
    found = {name: log.worst(counter) for name, counter in COUNTERS.items()}
    return {name: worst for name, worst in found.items() if worst is not None}


def _compare_value(
    name: str, counter: str, log: ForeignLog, golden: ForeignGolden, allowed: Thresholds
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
            f"{METRIC[name].title}: the golden holds a log's first report; rank {worst.rank} has "
            f"{worst.value / 1e9:.5g} GB after iteration {worst.iteration} ({worst.where})"
        ]
    return finding, later


def _compare_series(
    name: str, counter: str, log: ForeignLog, golden: ForeignGolden, allowed: Thresholds
) -> tuple[Finding | None, list[str]]:
    """Compare with a golden of Megatron-LM, which holds the last rank; the last reporting rank is on its stage."""
    series = golden.memory_by_iteration.get(counter)
    reports = [report for report in log.memory if getattr(report, counter) is not None]
    if not series:
        largest = max(reports, key=lambda report: _bytes(report, counter), default=None)
        return _only_current(name, _bytes(largest, counter) if largest else None), []
    both = [report for report in reports if report.iteration in series]
    if not both:
        stored = series[max(series)]
        listed = ", ".join(str(number) for number in sorted({report.iteration for report in reports})[:5])
        why = f"the log reports memory after iterations {listed}; the golden has no value for them ({_EVERY_ITERATION})"
        return _missing(name, stored, allowed, why if reports else _absent(log)), []
    last = max(both, key=lambda report: (report.rank, report.iteration))
    finding = compare_values(METRIC[name], _bytes(last, counter), series[last.iteration], allowed.memory)
    where = f"rank {last.rank} after iteration {last.iteration} ({last.where})"
    return finding, [f"Memory: {where}; the golden holds the last rank"]


def _bytes(report: RankMemory, counter: str) -> int:
    value: int = getattr(report, counter)
    return value


def _only_current(name: str, current: int | None) -> Finding | None:
    if current is None:
        return None
    return Finding(name, current, None, None, None, Verdict.NOT_GATED, "the golden has no such value")


def _missing(name: str, stored: int, allowed: Thresholds, why: str) -> Finding:
    finding = compare_values(METRIC[name], None, stored, allowed.memory)
    return replace(finding, verdict=Verdict.INCONCLUSIVE, reason=why)


def _absent(log: ForeignLog) -> str:
    return "no rank in the log reports it" if log.memory else _NO_MEMORY


def judge_log(
    log: ForeignLog,
    golden: ForeignGolden,
    window: WindowOptions,
    allowed: Thresholds,
    loss_limits: LossLimits | None = None,
    doubts: tuple[str, ...] = (),
) -> ForeignComparison:
    """Return all findings and the outcome. ``loss_limits`` None: losses are not compared.

    Speed and memory are inconclusive if a loss is NaN or missing. ``doubts``: further reasons not to trust them. A log
    that has not finished is judged up to its last iteration; the verdict is then provisional.
    """
    provisional = tuple(each.truncated for each in (log, golden.log) if each and each.truncated)
    last = log.iterations[-1].number if log.truncated else None
    steps = window_of(golden, window, last)
    speed, (memory, notes) = judge_speed(log, golden, steps, allowed), judge_memory(log, golden, allowed)
    found = (
        *doubts,
        _restarted_inside(log, steps),
        _other_size(log, golden),
        _other_batch(log, golden, steps),
        _missing_losses(log, golden),
        _zero_losses(log),
        *_impossible(log, golden),
    )
    doubts = tuple(doubt for doubt in found if doubt)
    findings = (
        *_doubted((*speed, *memory), doubts),
        *_gradients(log),
        *(_losses(log, golden, loss_limits) if loss_limits else ()),
    )
    every = (*log.notes, *golden.notes, *_batches_of_ramp(log, steps), *notes)
    return ForeignComparison(log, golden, steps, Comparison(findings, overall(findings)), doubts, every, provisional)


def _impossible(log: ForeignLog, golden: ForeignGolden) -> tuple[str, ...]:
    """Return the figures of either side that cannot be true."""
    peaks = {METRIC[name].title: worst.value for name, worst in _worst_ranks(log).items()}
    of_job = golden.gpu, golden.compute_dtype
    of_log = impossible_series(
        "the log", ((row.step_time_s, row.tflops_per_gpu) for row in log.iterations), peaks, *of_job
    )
    if golden.own is not None:
        return *of_log, *impossible_golden(golden.own)
    stored = {METRIC[name].title: golden.memory[key] for name, key in COUNTERS.items() if key in golden.memory}
    steps = ((row.step_time_s, row.tflops_per_gpu) for row in golden.steps.values())
    return *of_log, *impossible_series("the golden", steps, stored, *of_job)


def _doubted(findings: Iterable[Finding], doubts: tuple[str, ...]) -> list[Finding]:
    """Make judged findings inconclusive because of the doubts. Findings that are already inconclusive stay."""
    if not doubts:
        return list(findings)
    return [
        finding
        if finding.verdict in (Verdict.NOT_GATED, Verdict.INCONCLUSIVE)
        else replace(finding, verdict=Verdict.INCONCLUSIVE, reason="; ".join(doubts))
        for finding in findings
    ]


def _other_settings(logs: tuple[str, ...], golden: ForeignGolden) -> str:
    """Return that the log prints other settings than those of a golden of mbr-perf; empty where either has none."""
    spec = spec_like(golden.own) if golden.own else None
    logged = logged_arguments(logs) if spec else None
    return contradictions_text(logged, spec, "the golden") if logged and spec else ""


# What changes time or memory most stands first.
_EXPLAINS = ("recompute", "parallelism", "batch", "num_gpus", "compute_dtype", "model", "cuda_graph", "kernels")


def _other_arguments(ours: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the settings that differ between the arguments that two logs print; none where one prints none."""
    sides = [each.texts() if (each := logged_arguments(logs)) else {} for logs in (theirs, ours)]
    if not all(sides):
        return ()
    order = {name: place for place, name in enumerate(_EXPLAINS)}
    found = sorted(differing(*sides).items(), key=lambda each: order.get(each[0].partition(".")[0], len(order)))
    return tuple(f"{path}: {here or 'not set'} here, {there or 'not set'} there" for path, (there, here) in found)


def _other_size(log: ForeignLog, golden: ForeignGolden) -> str | None:
    """Return that the job has another number of GPUs than the golden, where both state it."""
    if log.world_size is None or golden.num_gpus is None or log.world_size == golden.num_gpus:
        return None
    return f"the job has {log.world_size} GPUs, the golden {golden.num_gpus}"


def _restarted_inside(log: ForeignLog, window: Window) -> str | None:
    """Return that iterations of the window come from two attempts, on other nodes perhaps, or with a warm-up."""
    starts: list[int] = []  # of the attempts whose figures the log keeps: a restart drops what lies behind it
    for number in log.restarts:
        starts = [*(start for start in starts if start < number), number]
    inside = [number for number in starts if min(window.iterations, default=number) < number <= window.end]
    if not inside:
        return None
    one = f"judge one attempt with --eval_time_start_step {inside[-1] - 1} or --eval_time_end_step {inside[0] - 1}"
    return f"the job restarted at iteration {inside[0]}, inside the window: {one}"


def _other_batch(log: ForeignLog, golden: ForeignGolden, window: Window) -> str | None:
    """Return that an iteration of the window has another global batch size than the golden, where both state it."""
    stated = golden.global_batch_size
    other = [size for _, size in _batches(log, window) if stated is not None and size != stated]
    return f"the job has a global batch size of {other[0]}, the golden {stated}" if other else None


def _batches_of_ramp(log: ForeignLog, window: Window) -> tuple[str, ...]:
    """Return a note if the global batch size changes inside the window, as a ramp makes it."""
    for (_, earlier), (number, later) in pairwise(_batches(log, window)):
        if earlier != later:
            return (
                f"the global batch size changes inside the window: from {earlier} to {later} in iteration {number}",
            )
    return ()


def _batches(log: ForeignLog, window: Window) -> list[tuple[int, int]]:
    """Return the number and the global batch size of the window's iterations that state it."""
    judged = frozenset(window.iterations)
    return [
        (row.number, row.global_batch_size) for row in log.iterations if row.number in judged and row.global_batch_size
    ]


def _zero_losses(log: ForeignLog) -> str | None:
    """Return that every loss is exactly 0, as when all labels are masked."""
    losses = [row.loss for row in log.iterations if row.loss is not None]
    if len(losses) < MIN_STEPS or any(losses):
        return None
    return f"the loss is 0 in all {len(losses)} iterations that print one: the job trained nothing"


def _missing_losses(log: ForeignLog, golden: ForeignGolden) -> str | None:
    """Return which losses are missing. Both trainers omit a loss that is NaN."""
    due = [row for row in log.iterations if row.skipped_iterations == 0]
    broken = [row for row in due if row.loss is None or row.is_loss_broken]
    is_text = log.num_lines > 0  # not a run, whose ranks may record no loss
    has_losses = (golden.has_loss and is_text) or any(row.loss is not None for row in due)
    if not broken or not has_losses:
        return None
    first = broken[0]
    what = "missing, which can mean NaN" if first.loss is None else f"{first.loss}"
    if first.nan_iterations:
        what = f"NaN in {first.nan_iterations} iterations"
    rest = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
    return f"the loss of iteration {first.number}{rest} is {what} ({first.where})"


def _gradients(log: ForeignLog) -> tuple[Finding, ...]:
    """Check that every printed gradient norm is finite. The value is the number of those that are not."""
    printed = [row for row in log.iterations if row.grad_norm is not None]
    if not printed:
        return ()
    broken = [row for row in printed if row.grad_norm is not None and not math.isfinite(row.grad_norm)]
    if not broken:
        return (Finding("grad_norm_non_finite", 0, None, None, 0, Verdict.PASS, f"{len(printed)} iterations"),)
    first = broken[0]
    reason = (
        f"{len(broken)} of {len(printed)}, the first is {first.grad_norm} in iteration {first.number} ({first.where})"
    )
    return (Finding("grad_norm_non_finite", len(broken), None, None, 0, Verdict.REGRESSION, reason),)


def _losses(log: ForeignLog, golden: ForeignGolden, limits: LossLimits) -> tuple[Finding, ...]:
    """Compare all steps for which the golden has a loss."""
    known = {row.number: row.loss for row in log.iterations}
    steps = [number for number, step in golden.steps.items() if step.loss is not None]
    current = [known.get(number) for number in steps]
    return judge_loss(steps, current, [step.loss for step in golden.steps.values() if step.loss is not None], limits)


_NAME_GOLDEN = (
    "name a golden file of Megatron-Bridge, Megatron-LM or mbr-perf, or a name of `mbr-perf golden list`; "
    "--actuals FILE makes a golden from the log"
)


@dataclass(frozen=True, kw_only=True)
class ForeignRequest:
    """The two sides to compare, and how strictly. ``golden`` None: only write ``actuals``."""

    ours: Side
    golden: Side | None
    form: Format
    window: WindowOptions
    thresholds: Thresholds
    loss_limits: LossLimits | None
    fail_on_improvement: bool
    actuals: Path | None


@dataclass(frozen=True)
class ForeignAnswer:
    """The result. ``comparison`` None: there was no golden. ``actuals``: the written file.

    ``is_growing``: the job may still write its log, because neither its end nor a failure is in it.
    """

    log: ForeignLog
    comparison: ForeignComparison | None
    outcome: Outcome
    exit_code: ExitCode
    actuals: Path | None = None
    is_growing: bool = False


def compare_foreign(request: ForeignRequest) -> ForeignAnswer:
    """Read the log, write the actuals, then judge, so that an unreadable golden does not lose the actuals.

    A log without iterations leaves no actuals. A log of an unfinished run is inconclusive even without a golden.
    """
    _require_files(request)
    _require_another_file(request)
    log, failed = read_side(request.ours)
    written = request.actuals if log.iterations else None
    if written:
        write_actuals(written, log)
    if request.golden is None:
        cut = _is_cut_short(log)
        code = ExitCode.INCONCLUSIVE if cut else ExitCode.OK
        return ForeignAnswer(log, None, "inconclusive" if cut else "pass", code, written)
    golden = _golden(request.golden, request.form, written)
    failure = failure_sentence(failed.failure) if failed and _failed(failed, log) else None
    doubts = tuple(doubt for doubt in (failure, _other_settings(request.ours.paths, golden)) if doubt)
    judged = judge_log(log, golden, request.window, request.thresholds, request.loss_limits, doubts)
    if golden.log is not None:
        judged = replace(judged, settings=_other_arguments(request.ours.paths, golden.log.sources))
    final = replace(judged.comparison, outcome=judged.outcome)
    outcome, exit_code = comparison_outcome(final, fail_on_improvement=request.fail_on_improvement)
    return ForeignAnswer(log, judged, outcome, exit_code, written, _is_cut_short(log) and failed is None)


# The job's time limit or its user ended it: no failure, if complete steps stand before.
_ENDED = ("slurm_time_limit", "run_time_limit", "slurm_cancelled", "slurm_step_cancelled", "sigint", "sigterm")


def _failed(found: FirstFailure, log: ForeignLog) -> bool:
    """Return whether the failure ended the job, and no user and no time limit did after complete steps."""
    is_ended = found.failure.entry in _ENDED and len(log.iterations) >= MIN_STEPS
    return _is_cut_short(log) and not is_ended


def _require_files(request: ForeignRequest) -> None:
    """BadRequestError: logs do not exist; also names a golden that cannot be read."""
    problems = Problems()
    with problems.collecting():
        require_logs(request.ours)
    if problems.found and request.golden is not None:
        with problems.collecting():
            _golden(request.golden, request.form, None)
    problems.raise_if_any()


def _require_another_file(request: ForeignRequest) -> None:
    """BadRequestError: the actuals would replace the golden before the comparison with it."""
    if request.golden is None or request.actuals is None:
        return
    golden = golden_file(request.golden.given) or Path(request.golden.given)
    if golden.resolve() == request.actuals.resolve():
        raise BadRequestError(
            f"--actuals {request.actuals}: is the golden file, which the log's values would replace",
            remedy="name another file",
        )


def _golden(side: Side, form: Format, written: Path | None) -> ForeignGolden:
    """Read the golden. BadRequestError: it cannot be read; names the file that was written before."""
    if side.kind in ("log", "run"):
        return golden_of(read_side(side)[0])
    try:
        return read_foreign_golden(golden_file(side.given) or Path(side.given), form)
    except BadRequestError as error:
        done = f"; {written} was written" if written else ""
        raise BadRequestError(error.message, remedy=(error.remedy or _NAME_GOLDEN) + done) from error


def _is_cut_short(log: ForeignLog) -> bool:
    """Return whether the job did not reach its end; a failure from which it recovered does not count."""
    return not log.iterations or log.truncated is not None
