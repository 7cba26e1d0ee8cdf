"""Turns a log, and what it is compared with, into figures over the same iterations for the one gate."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median

from harness.experiment.experiment import MIN_STEPS, MeasureSpec
from harness.foreign.golden import ForeignGolden, GoldenStep
from harness.foreign.log import ForeignLog, Iteration
from harness.judge.compare import WindowOptions
from harness.judge.gate import Comparison, Figure, Finding, Thresholds, Verdict, judge_figure, overall
from harness.judge.plausible import impossible_golden, impossible_series
from harness.records.metrics import BY_NAME, Metric
from harness.units import counted

_SPEEDS = {
    "tflops_per_gpu": "no throughput in the log: neither 'GPU utilization' nor 'throughput per GPU' (--log-throughput)",
    "step_time_s": "no 'elapsed time per iteration' in the log",
}
COUNTERS = {
    "allocated_bytes": "allocated_bytes",
    "peak_allocated_bytes": "max_allocated_bytes",
    "peak_reserved_bytes": "max_reserved_bytes",
}
ROWS: Mapping[str, Metric] = {
    name: BY_NAME.get(name) or Metric(name, "Allocated", "bytes", "lower", "memory") for name in (*_SPEEDS, *COUNTERS)
}
"""The figures of a log, in the order of the report. A log names a peak after torch's counter."""

_Row = tuple[Metric, Figure, Figure | None]


@dataclass(frozen=True)
class Window:
    """The golden's iterations that count, from step ``start`` to before step ``end``, counted from 0."""

    start: int
    end: int
    iterations: tuple[int, ...]

    @property
    def text(self) -> str:
        """Return the iterations, counted from 1 as in logs."""
        if len(self.iterations) == 1:
            return f"iteration {self.iterations[0]}"
        return "none" if not self.iterations else f"iterations {self.iterations[0]} to {self.iterations[-1]}"


@dataclass(frozen=True)
class ForeignComparison:
    """A log compared with a golden. ``settings``: those that two logs print differently, likely causes first."""

    log: ForeignLog
    golden: ForeignGolden
    window: Window
    comparison: Comparison
    doubts: tuple[str, ...]
    notes: tuple[str, ...]
    settings: tuple[str, ...] = ()


def judge_log(
    log: ForeignLog,
    golden: ForeignGolden,
    window: WindowOptions,
    allowed: Thresholds,
    *,
    doubts: Iterable[str] = (),
) -> ForeignComparison:
    """Return the findings over the iterations that both have. ``doubts``: further reasons for no verdict."""
    last = log.iterations[-1].number if log.iterations else None
    steps = window_of(golden, window, last)
    every = (*doubts, *_doubts(log, golden, steps))
    withheld = (Verdict.INCONCLUSIVE, "; ".join(every)) if every else None
    notes = tuple(dict.fromkeys((*log.notes, *golden.notes)))
    rows = (*_speeds(log, golden, steps), *_memory(log, golden))
    shown = (row for row in rows if row[0].gate or any(each and each.value is not None for each in row[1:]))
    judged = (*(judge_figure(*row, allowed, withheld) for row in shown), *_gradients(log))
    theirs = golden.log.truncated if golden.log else None
    short = f"the log ends at iteration {last}, the reference at {golden.timed[-1]}"
    is_short = last is not None and not log.truncated and last < max(window_of(golden, window).iterations, default=0)
    ends = filter(None, (log.truncated, short * is_short, (theirs or "").replace("the log", "the reference", 1)))
    comparison = Comparison(judged, overall(judged), provisional=tuple(ends))
    return ForeignComparison(log, golden, steps, comparison, every, notes)


def window_of(golden: ForeignGolden, options: WindowOptions, last: int | None = None) -> Window:
    """Return the golden's iterations in the window, up to ``last``. BadRequestError: a value is out of range."""
    asked = options.over(MeasureSpec(max_steps=max(1, golden.timed[-1])))
    numbers = tuple(number for number in golden.timed if last is None or number <= last) or golden.timed
    start, end = asked.eval_time_start_step, asked.eval_time_end_step
    if start is None:
        first = max(1, int(len(numbers) * asked.skip_first_percent_time))
        start = numbers[first] - 1 if first < len(numbers) else numbers[-1]
    if end is None:
        end = numbers[-1]
    return Window(start, end, tuple(number for number in numbers if start <= number - 1 < end))


def _speeds(log: ForeignLog, golden: ForeignGolden, window: Window) -> Iterator[_Row]:
    """Yield throughput and step time; throughput is judged if both have it, else step time."""
    by_time, why = _is_by_time(log, golden), ""
    first, unstated = int(golden.format == "megatron-lm" or golden.log is not None), _unstated(log, golden, window)
    if by_time and unstated and not golden.log:
        why = f"{unstated}, which iteration times need: give golden values with throughput, or of mbr-perf"
    elif log.is_measured and not by_time:
        why = "mbr-perf counts the FLOPs of its own runs by another formula"
    for name in _SPEEDS:
        ours, stored = _of_log(name, log, window), _over(name, golden.steps, window, str(golden.path), first)
        ours = replace(ours, problem=ours.problem or why)
        yield replace(ROWS[name], gate="time" if by_time == (name == "step_time_s") else None), ours, stored


def _is_by_time(log: ForeignLog, golden: ForeignGolden) -> bool:
    """Return whether the step time is judged: no throughput, or one that mbr-perf counts by a formula of its own."""
    if not golden.has_throughput or golden.log is None:
        return not golden.has_throughput
    is_timed_only = all(row.tflops_per_gpu is None for row in log.iterations)
    return is_timed_only or log.is_measured or golden.log.is_measured


def _over(name: str, steps: Mapping[int, Iteration | GoldenStep], window: Window, whose: str, first: int) -> Figure:
    """Return the median over the window, and a step without a number. ``first``: the number of the first step."""
    values = {number: getattr(steps.get(number), name, None) for number in window.iterations}
    usable = {number: value for number, value in values.items() if value is not None and math.isfinite(value)}
    lacking = next((number for number in values if number not in usable), None)
    problem = ""
    if lacking is not None:
        word = "iteration" if first else "step"
        problem = f"{word} {lacking - 1 + first} of {whose} has no number for {ROWS[name].title}"
    return Figure(median(usable.values()) if usable else None, problem)


def _of_log(name: str, log: ForeignLog, window: Window) -> Figure:
    read = _over(name, {row.number: row for row in log.iterations}, window, "the log", 1)
    problem, count = read.problem, len(window.iterations)
    if not log.iterations:
        problem = f"no line of an iteration in {', '.join(log.sources)} ({counted(log.num_lines, 'line')})"
    elif all(getattr(row, name) is None for row in log.iterations):
        problem = _SPEEDS[name]
    elif problem:
        problem = log.truncated or problem
    elif count < MIN_STEPS:
        problem = f"{counted(count, 'compared step')} ({window.text}), not {MIN_STEPS}"
    return replace(read, problem=problem)


def _unstated(log: ForeignLog, golden: ForeignGolden, window: Window) -> str:
    """Return which of the number of GPUs and the batch a side does not state; empty if both state both."""
    names, batches = ("number of GPUs", "global batch size"), _batches(log, window)
    sides = {"the reference": (golden.num_gpus, golden.global_batch_size), "the job": (log.world_size, batches)}
    lacks = {who: [name for name, value in zip(names, has, strict=True) if not value] for who, has in sides.items()}
    return "; ".join(f"{who} does not state its {' and '.join(which)}" for who, which in lacks.items() if which)


def _memory(log: ForeignLog, golden: ForeignGolden) -> Iterator[_Row]:
    for name, counter in COUNTERS.items():
        if golden.memory_by_iteration.get(counter):
            yield ROWS[name], *_at_last_rank(counter, log, golden)
            continue
        stored = golden.memory.get(counter)
        is_whole = golden.of_whole_run or golden.format == "megatron-lm" or stored is None
        report = log.worst(counter, as_in_bridge=not is_whole)
        if report or stored is not None:
            ours = Figure(report.value) if report else Figure(None, _no_memory(log))
            yield ROWS[name], ours, None if stored is None else Figure(stored)


def _at_last_rank(counter: str, log: ForeignLog, golden: ForeignGolden) -> tuple[Figure, Figure]:
    """Return both figures of a golden of Megatron-LM: of the last rank, at an iteration that both report."""
    series = golden.memory_by_iteration[counter]
    reports = [report for report in log.memory if getattr(report, counter) is not None]
    if both := [report for report in reports if report.iteration in series]:
        last = max(both, key=lambda report: (report.rank, report.iteration))
        return Figure(getattr(last, counter)), Figure(series[last.iteration])
    listed = ", ".join(map(str, sorted({report.iteration for report in reports})[:5]))
    why = f"the reference has no value for iterations {listed}, after which the log reports memory"
    problem = f"{why} (--log-memory-interval 1)" if reports else _no_memory(log)
    return Figure(None, problem), Figure(series[max(series)])


def _no_memory(log: ForeignLog) -> str:
    none = "no line '[Rank N] (after N iterations) memory' in the log"
    return "no rank in the log reports it" if log.memory else none


def _doubts(log: ForeignLog, golden: ForeignGolden, window: Window) -> Iterator[str]:
    """Yield why no figure allows a verdict: two attempts, another job, missing losses or impossible figures."""
    yield from _restarted_inside(log, window)
    if None not in (log.world_size, golden.num_gpus) and log.world_size != golden.num_gpus:
        yield f"{log.world_size} GPUs, the reference has {golden.num_gpus}"
    if other := [size for _, size in _batches(log, window) if size != (golden.global_batch_size or size)]:
        yield f"a global batch size of {other[0]}, the reference has {golden.global_batch_size}"
    yield from (*_broken_loss(log, golden), *_impossible(log, golden))


def _impossible(log: ForeignLog, golden: ForeignGolden) -> Iterator[str]:
    highest = {key: worst.value for key in COUNTERS.values() if (worst := log.worst(key))}
    for whose, rows, memory in (
        ("the log", log.iterations, highest),
        ("the reference", () if golden.own else golden.steps.values(), {} if golden.own else golden.memory),
    ):
        peaks = {ROWS[name].title: memory[key] for name, key in COUNTERS.items() if key in memory}
        steps = ((row.step_time_s, row.tflops_per_gpu) for row in rows)
        yield from impossible_series(whose, steps, peaks, golden.gpu, golden.compute_dtype)
    yield from impossible_golden(golden.own) if golden.own else ()


def _restarted_inside(log: ForeignLog, window: Window) -> Iterator[str]:
    """Yield that iterations of the window come from two attempts, on other nodes perhaps, or with a warm-up."""
    starts: list[int] = []  # of the attempts whose figures the log keeps: a restart drops what lies behind it
    for number in log.restarts:
        starts = [*(start for start in starts if start < number), number]
    inside = [number for number in starts if min(window.iterations, default=number) < number <= window.end]
    if inside:
        one = f"judge one attempt with --eval_time_start_step {inside[-1] - 1} or --eval_time_end_step {inside[0] - 1}"
        yield f"the job restarted at iteration {inside[0]}, among the compared steps: {one}"


def _batches(log: ForeignLog, window: Window) -> list[tuple[int, int]]:
    """Return the number and the global batch size of the window's iterations that state it."""
    judged = frozenset(window.iterations)
    return [
        (row.number, row.global_batch_size) for row in log.iterations if row.number in judged and row.global_batch_size
    ]


def _gradients(log: ForeignLog) -> Iterator[Finding]:
    """Check that every printed gradient norm is finite. The value is the number of those that are not."""
    printed = [row for row in log.iterations if row.grad_norm is not None]
    broken = [row for row in printed if row.grad_norm is not None and not math.isfinite(row.grad_norm)]
    reason = f"first in iteration {broken[0].number} ({broken[0].where})" if broken else ""
    if printed:
        verdict = Verdict.REGRESSION if broken else Verdict.PASS
        yield Finding("grad_norm_non_finite", len(broken), None, None, 0, verdict, reason)


def _broken_loss(log: ForeignLog, golden: ForeignGolden) -> Iterator[str]:
    """Yield which loss is not finite or missing: both trainers omit a loss that is NaN."""
    due = [row for row in log.iterations if row.skipped_iterations == 0]
    broken = next((row for row in due if row.loss is None or row.is_loss_broken), None)
    is_text = log.num_lines > 0  # not a run, whose ranks may record no loss
    if broken and ((golden.has_loss and is_text) or any(row.loss is not None for row in due)):
        yield f"the loss of iteration {broken.number} is missing or not finite ({broken.where})"
