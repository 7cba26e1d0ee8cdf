"""Throughput and step time of a log against a golden: medians over the same iterations of both."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.errors import BadRequestError
from harness.imports.compare.values import METRIC, ForeignThresholds, Judged, Window
from harness.imports.golden.values import ForeignGolden
from harness.imports.log.values import ForeignLog, Iteration
from harness.judging.compare import WindowOptions
from harness.judging.gate import Finding, Verdict, compare_values
from harness.judging.statistics import mean, median
from harness.judging.window import MIN_STEPS
from harness.units import counted

# Megatron-Bridge's: its help says 0.75, its parser 0.70.
SKIP_FIRST_SHARE = 0.70
_FAR_OFF = 0.10

_ABSENT = {
    "tflops_per_gpu": "no throughput in the log: neither 'GPU utilization' nor 'throughput per GPU' (--log-throughput)",
    "step_time_s": "no 'elapsed time per iteration' in the log",
}
_KEYS = {"tflops_per_gpu": "throughput", "step_time_s": "time"}


@dataclass(frozen=True)
class _Side:
    """One side's values over the window, and why they are no basis for a verdict."""

    values: tuple[float, ...]
    problem: str | None = None


def window_of(golden: ForeignGolden, options: WindowOptions) -> Window:
    """The golden's iterations in the window. Steps are counted from 0; a share is one of the golden's steps.

    The first step never counts unless asked for by number, as in Megatron-Bridge. BadRequestError for values out of range.
    """
    numbers = golden.timed
    share, start, end = _asked(options)
    if start is None:
        first = max(1, int(len(numbers) * share))
        start = numbers[first] - 1 if first < len(numbers) else numbers[-1]
    if end is None:
        end = numbers[-1]
    return Window(start, end, tuple(number for number in numbers if start <= number - 1 < end))


def judge_speed(log: ForeignLog, golden: ForeignGolden, window: Window, allowed: ForeignThresholds) -> Judged:
    """Throughput is judged where the golden has it, else step time; the other is there for reading."""
    judged = "tflops_per_gpu" if golden.has_throughput else "step_time_s"
    by_number = {one.number: one for one in log.iterations}
    findings, notes = [], []
    for name in ("tflops_per_gpu", "step_time_s"):
        finding, told = _finding(name, log, golden, by_number, window, allowed)
        if name == judged:
            findings.append(finding)
            notes += told
        elif finding.current is not None or finding.golden is not None:
            why = "the golden has no throughput" if name == "tflops_per_gpu" else "for reading; throughput is judged"
            findings.append(replace(finding, threshold=None, verdict=Verdict.NOT_GATED, reason=why))
    return Judged(tuple(findings), tuple(notes))


def _asked(options: WindowOptions) -> tuple[float, int | None, int | None]:
    share = SKIP_FIRST_SHARE if options.skip_first_percent_time is None else options.skip_first_percent_time
    start, end = options.eval_time_start_step, options.eval_time_end_step
    if not 0 <= share < 1:
        raise BadRequestError(f"--skip_first_percent_time {share}: a share from 0 to below 1", remedy="0.7 skips 70 %")
    for name, value in (("start", start), ("end", end)):
        if value is not None and value < 0:
            raise BadRequestError(f"--eval_time_{name}_step {value}: steps are counted from 0")
    if start is not None and end is not None and start >= end:
        raise BadRequestError(f"--eval_time_start_step {start}, --eval_time_end_step {end}: this window holds no step")
    return share, start, end


def _finding(
    name: str,
    log: ForeignLog,
    golden: ForeignGolden,
    by_number: Mapping[int, Iteration],
    window: Window,
    allowed: ForeignThresholds,
) -> tuple[Finding, list[str]]:
    current = _current(name, log, by_number, window)
    stored = _stored(name, golden, window)
    finding = compare_values(METRIC[name], _median(current), _median(stored), allowed.time)
    problem = stored.problem or current.problem
    if problem is None:
        return finding, _far_off(name, current, [by_number[number] for number in window.iterations])
    return replace(finding, change=None, verdict=Verdict.INCONCLUSIVE, reason=problem), []


def _median(side: _Side) -> float | None:
    return median(side.values) if side.values else None


def _current(name: str, log: ForeignLog, by_number: Mapping[int, Iteration], window: Window) -> _Side:
    present = [one for number in window.iterations if (one := by_number.get(number)) is not None]
    told = [(one, value) for one in present if (value := getattr(one, name)) is not None]
    values = tuple(value for _, value in told if math.isfinite(value))
    return _Side(values, _nothing_at_all(name, log, window) or _incomplete(name, log, window, told))


def _nothing_at_all(name: str, log: ForeignLog, window: Window) -> str | None:
    if not log.iterations:
        return f"no line of an iteration in {', '.join(log.sources)} ({counted(log.num_lines, 'line')})"
    if all(getattr(one, name) is None for one in log.iterations):
        return _ABSENT[name]
    if not window.iterations:
        return f"the window of steps [{window.start}, {window.end}) holds none of the golden's"
    return None


def _incomplete(name: str, log: ForeignLog, window: Window, told: Sequence[tuple[Iteration, float]]) -> str | None:
    missing = sorted(set(window.iterations) - {one.number for one, _ in told})
    if missing:
        return log.truncated or _gap(missing, window, log)
    broken = [one for one, value in told if not math.isfinite(value)]
    if broken:
        return f"iteration {broken[0].number} says {getattr(broken[0], name)} ({broken[0].where})"
    return (
        f"{counted(len(told), 'step')} in the window, at least {MIN_STEPS} are needed"
        if len(told) < MIN_STEPS
        else None
    )


def _gap(missing: Sequence[int], window: Window, log: ForeignLog) -> str:
    every = f"; the log has every {log.interval}th iteration" if log.interval > 1 else ""
    return f"{len(missing)} of {len(window.iterations)} iterations of the window are not in the log, first {missing[0]}{every}"


def _stored(name: str, golden: ForeignGolden, window: Window) -> _Side:
    told = [(number, getattr(golden.steps[number], name)) for number in window.iterations]
    values = tuple(value for _, value in told if value is not None and math.isfinite(value))
    unusable = [(number, value) for number, value in told if value is None or not math.isfinite(value)]
    if not unusable:
        return _Side(values)
    if all(value is None for _, value in told):
        return _Side((), f"{golden.path} has no {_KEYS[name]} in the window")
    number, value = unusable[0]
    key = number - 1 if golden.format == "bridge" else number
    rest = f", and of {len(unusable) - 1} more" if len(unusable) > 1 else ""
    what = f"no {_KEYS[name]}" if value is None else f"{_KEYS[name]} is NaN"
    return _Side(values, f"{golden.path}: step {key}: {what}{rest}")


def _far_off(name: str, side: _Side, iterations: Sequence[Iteration]) -> list[str]:
    """Steps that a median passes over and a mean would not."""
    middle = median(side.values)
    by_distance = {one: abs(getattr(one, name) - middle) for one in iterations}
    far = [one for one, distance in by_distance.items() if distance > _FAR_OFF * abs(middle)]
    if not far:
        return []
    worst = max(far, key=lambda one: by_distance[one])
    return [
        f"{len(far)} of {len(iterations)} iterations are over 10 % off the median {middle:.5g}, most of all "
        f"{worst.number}: {getattr(worst, name):.5g} ({worst.where}); the mean is {mean(side.values):.5g}"
    ]
