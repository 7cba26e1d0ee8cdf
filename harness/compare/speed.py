"""Compares throughput and step time of a log with a golden: medians over the same iterations of both."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from harness.compare.values import METRIC, Window
from harness.errors import BadRequestError
from harness.experiment.experiment import MIN_STEPS
from harness.foreign.golden import ForeignGolden, GoldenStep
from harness.foreign.log import ForeignLog, Iteration
from harness.judge.compare import WindowOptions
from harness.judge.gate import Finding, Thresholds, Verdict, compare_values
from harness.units import counted

# The default of Megatron-Bridge's parser; its help text has 0.75.
SKIP_FIRST_SHARE = 0.70
_GIVE_IT = "give golden values with throughput, or a golden of mbr-perf, which states both"
_NO_THROUGHPUT, _FOR_READING = "the golden has no throughput", "shown only; mbr-perf judges throughput"


@dataclass(frozen=True)
class _Speed:
    """A measure of speed. ``absent``: why a log does not have it; ``key``: its name in goldens."""

    name: str
    key: str
    read: Callable[[Iteration | GoldenStep], float | None]
    absent: str


_SPEEDS = (
    _Speed(
        "tflops_per_gpu",
        "throughput",
        lambda row: row.tflops_per_gpu,
        "no throughput in the log: neither 'GPU utilization' nor 'throughput per GPU' (--log-throughput)",
    ),
    _Speed("step_time_s", "time", lambda row: row.step_time_s, "no 'elapsed time per iteration' in the log"),
)


@dataclass(frozen=True)
class _Side:
    """One side's values in the window, and the problem that prevents a verdict, if any."""

    values: tuple[float, ...]
    problem: str | None = None

    @property
    def median(self) -> float | None:
        """Return the median of the values; None without values."""
        return median(self.values) if self.values else None


def window_of(golden: ForeignGolden, options: WindowOptions, last: int | None = None) -> Window:
    """Return the golden's iterations in the window. Steps count from 0; a share is a share of the golden's steps.

    The first step counts only if its number is given, as in Megatron-Bridge. ``last``: the last iteration of a log that
    has not finished; none after it counts. BadRequestError: a value is out of range.
    """
    numbers = tuple(number for number in golden.timed if last is None or number <= last) or golden.timed
    share, start, end = _asked(options)
    if start is None:
        first = max(1, int(len(numbers) * share))
        start = numbers[first] - 1 if first < len(numbers) else numbers[-1]
    if end is None:
        end = numbers[-1]
    return Window(start, end, tuple(number for number in numbers if start <= number - 1 < end))


def judge_speed(log: ForeignLog, golden: ForeignGolden, window: Window, allowed: Thresholds) -> tuple[Finding, ...]:
    """Judge throughput if the golden has it; only show the other.

    Else judge step time, which needs the GPUs and the batch of the golden. An unknown number is not equal: golden
    values of Megatron-LM state neither and judge no time.
    """
    by_time = not golden.has_throughput or (golden.log is not None and not _has_throughput(log))
    judged = "step_time_s" if by_time else "tflops_per_gpu"
    by_number = {row.number: row for row in log.iterations}
    findings = []
    for speed in _SPEEDS:
        current, stored = _current(speed, log, by_number, window), _stored(speed, golden, window)
        finding = compare_values(METRIC[speed.name], current.median, stored.median, allowed.time)
        if speed.name != judged:
            if finding.current is not None or finding.golden is not None:
                why = _NO_THROUGHPUT if speed.name == "tflops_per_gpu" else _FOR_READING
                findings.append(replace(finding, threshold=None, verdict=Verdict.NOT_GATED, reason=why))
        elif (
            problem := stored.problem
            or current.problem
            or (_other_job(log, golden, by_number, window) if by_time else None)
        ):
            findings.append(replace(finding, verdict=Verdict.INCONCLUSIVE, reason=problem))
        else:
            findings.append(finding)
    return tuple(findings)


def _has_throughput(log: ForeignLog) -> bool:
    return any(row.tflops_per_gpu is not None for row in log.iterations)


def _other_job(
    log: ForeignLog, golden: ForeignGolden, by_number: Mapping[int, Iteration], window: Window
) -> str | None:
    """Return how GPUs or batch differ from the golden's, or what the golden does not state; None if they agree."""
    batches = {by_number[number].global_batch_size for number in window.iterations if number in by_number}
    rows = (
        ("number of GPUs", golden.num_gpus, {log.world_size}),
        ("global batch size", golden.global_batch_size, batches),
    )
    unstated = [name for name, stated, _ in rows if stated is None]
    if unstated:
        lacks = " and ".join(unstated)
        return f"{_NO_THROUGHPUT} and does not state its {lacks}, which iteration times need: {_GIVE_IT}"
    for name, stated, found in rows:
        if found == {stated}:
            continue
        has = ", ".join(sorted("an unknown one" if each is None else str(each) for each in found))
        return f"{_NO_THROUGHPUT}, and iteration times need the same {name}: the golden has {stated}, the job {has}"
    return None


def _asked(options: WindowOptions) -> tuple[float, int | None, int | None]:
    share = SKIP_FIRST_SHARE if options.skip_first_percent_time is None else options.skip_first_percent_time
    start, end = options.eval_time_start_step, options.eval_time_end_step
    if not 0 <= share < 1:
        raise BadRequestError(
            f"--skip_first_percent_time {share}: not a share from 0 to below 1", remedy="for example, 0.7 skips 70 %"
        )
    for name, value in (("start", start), ("end", end)):
        if value is not None and value < 0:
            raise BadRequestError(f"--eval_time_{name}_step {value}: steps count from 0", remedy="give 0 or more")
    if start is not None and end is not None and start >= end:
        raise BadRequestError(
            f"--eval_time_start_step {start}, --eval_time_end_step {end}: this window contains no step",
            remedy="let the end be larger",
        )
    return share, start, end


def _current(speed: _Speed, log: ForeignLog, by_number: Mapping[int, Iteration], window: Window) -> _Side:
    present = [row for number in window.iterations if (row := by_number.get(number)) is not None]
    read = [(row, value) for row in present if (value := speed.read(row)) is not None]
    return _Side(tuple(value for _, value in read if math.isfinite(value)), _no_basis(speed, log, window, read))


def _no_basis(speed: _Speed, log: ForeignLog, window: Window, read: Sequence[tuple[Iteration, float]]) -> str | None:
    """Return why the log's values allow no verdict: they are absent, missing in part, not finite or too few."""
    if not log.iterations:
        return f"no line of an iteration in {', '.join(log.sources)} ({counted(log.num_lines, 'line')})"
    if all(speed.read(row) is None for row in log.iterations):
        return speed.absent
    if not window.iterations:
        return f"the window of steps [{window.start}, {window.end}) contains no step of the golden"
    missing = sorted(set(window.iterations) - {row.number for row, _ in read})
    if missing:
        every = f"; the log has every {log.interval}th iteration" if log.interval > 1 else ""
        share = f"{len(missing)} of {len(window.iterations)} iterations of the window"
        return log.truncated or f"{share} are not in the log, the first is {missing[0]}{every}"
    broken = next(((row, value) for row, value in read if not math.isfinite(value)), None)
    if broken:
        return f"the value of iteration {broken[0].number} is {broken[1]} ({broken[0].where})"
    few = f"{counted(len(read), 'step')} in the window, but at least {MIN_STEPS} are needed"
    return few if len(read) < MIN_STEPS else None


def _stored(speed: _Speed, golden: ForeignGolden, window: Window) -> _Side:
    stored = [(number, speed.read(golden.steps[number])) for number in window.iterations]
    values = tuple(value for _, value in stored if value is not None and math.isfinite(value))
    unusable = [(number, value) for number, value in stored if value is None or not math.isfinite(value)]
    if not unusable:
        return _Side(values)
    if all(value is None for _, value in stored):
        return _Side((), f"{golden.path} has no {speed.key} in the window")
    number, value = unusable[0]
    key = number if golden.format == "megatron-lm" else number - 1
    rest = f", and {len(unusable) - 1} more steps" if len(unusable) > 1 else ""
    what = f"no {speed.key}" if value is None else f"{speed.key} is NaN"
    return _Side(values, f"{golden.path}: step {key}: {what}{rest}")
