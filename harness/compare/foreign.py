"""Compares a log, or a run beside a log, with a reference: reads both, and judges."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from harness.compare.figures import ForeignComparison, Window, judge_log
from harness.errors import BadRequestError, ExitCode, Problems
from harness.foreign.golden import ForeignGolden, GoldenFormat, read_foreign_golden
from harness.foreign.log import ForeignLog, LogFormat, WorstRank
from harness.foreign.logs.sources import log_sources
from harness.imports.job import ending_failure, failure_sentence
from harness.imports.sides import Side, golden_of, read_side
from harness.judge.compare import WindowOptions
from harness.judge.gate import Finding, Outcome, Thresholds, comparison_outcome
from harness.measure.logged import Logged, contradictions, contradictions_text, logged_arguments
from harness.records.golden import NOT_SET, Difference, differences, leaves, spec_like
from harness.records.goldens import golden_file
from harness.records.run import RunRecord
from harness.show.json import Document, Shown, at

OF_BRIDGE = Thresholds(time=0.05, memory=0.05)
"""The allowed relative worsening in Megatron-Bridge."""


def _other_settings(logs: tuple[str, ...], golden: ForeignGolden) -> str:
    """Return that the log prints other settings than those of a golden of mbr-perf; empty where either has none."""
    spec = spec_like(golden.own) if golden.own else None
    logged = logged_arguments(logs) if spec else None
    return contradictions_text(logged, spec, "the golden") if logged and spec else ""


# What changes time or memory most stands first.
_EXPLAINS = ("recompute", "parallelism", "batch", "num_gpus", "compute_dtype", "model", "cuda_graph", "kernels")


def _differing(ours: ForeignLog, theirs: ForeignLog) -> tuple[str, ...]:
    """Return the settings in which two runs or logs differ; none where a log prints no arguments."""
    order = {name: place for place, name in enumerate(_EXPLAINS)}
    found = sorted(_found(ours, theirs), key=lambda each: order.get(each.name.partition(".")[0], len(order)))
    return tuple(f"{each.name}: {each.after or NOT_SET} here, {each.before or NOT_SET} there" for each in found)


def _found(ours: ForeignLog, theirs: ForeignLog) -> Iterable[Difference]:
    logged = [None if side.run else logged_arguments(side.sources) for side in (theirs, ours)]
    match theirs.run, ours.run, *logged:
        case RunRecord() as before, RunRecord() as after, *_:
            # A log states neither its recipe nor its environment.
            unknown = ("recipe", "env.")
            every = differences(leaves(before.spec.identity()), leaves(after.spec.identity()))
            return [each for each in every if not each.name.startswith(unknown)]
        case RunRecord() as run, None, None, Logged() as log:
            return contradictions(log.settings, run.spec)
        case None, RunRecord() as run, Logged() as log, None:
            found = contradictions(log.settings, run.spec)
            return [replace(each, before=each.after, after=each.before) for each in found]
        case None, None, Logged() as log, Logged() as other:
            return differences({**log.others, **log.texts()}, {**other.others, **other.texts()})
        case _:
            return ()


_NAME_GOLDEN = "name a golden file of Megatron-Bridge, Megatron-LM or mbr-perf, or a name of `mbr-perf golden list`"


@dataclass(frozen=True, kw_only=True)
class ForeignRequest:
    """The two sides to compare, and how strictly."""

    ours: Side
    golden: Side
    window: WindowOptions = field(default_factory=WindowOptions)
    thresholds: Thresholds = OF_BRIDGE
    fail_on_improvement: bool = False


_COUNTERS = ("allocated_bytes", "max_allocated_bytes", "reserved_bytes", "max_reserved_bytes", "device_used_bytes")


class Log(Shown):
    """The log as read. ``worst_memory`` has the counters that any rank reported."""

    format: LogFormat | None
    sources: tuple[str, ...]
    first_iteration: int | None = at("iterations", 0, "number")
    last_iteration: int | None = at("iterations", -1, "number")
    num_iterations: Annotated[int, BeforeValidator(len)] = at("iterations")
    total_iterations: int | None = at("total")
    world_size: int | None
    truncated: str | None
    restarts: tuple[int, ...]
    worst_memory: Annotated[
        dict[str, WorstRank],
        BeforeValidator(lambda worst: {name: found for name in _COUNTERS if (found := worst(name))}),
    ] = at("worst")


class UsedFile(Shown):
    """The golden file of another program."""

    path: Path
    format: GoldenFormat
    layout: str
    num_steps: Annotated[int, BeforeValidator(len)] = at("steps")


class ForeignAnswer(Document):
    """``mbr-perf compare LOG B --json``, in s, TFLOP/s/GPU, bytes. ``provisional``: the side that ends early."""

    # is_growing: the job may still write its log, because neither its end nor a failure is in it.
    judged: ForeignComparison = Field(exclude=True)
    is_growing: bool = Field(default=False, exclude=True)
    outcome: Outcome
    exit_code: int
    log: Log = at("judged", "log")
    comparison: tuple[Finding, ...] = at("judged", "comparison", "findings")
    golden: UsedFile = at("judged", "golden")
    window: Window = at("judged", "window")
    doubts: tuple[str, ...]
    notes: tuple[str, ...]
    provisional: tuple[str, ...] = at("judged", "comparison", "provisional")
    settings: tuple[str, ...] = at("judged", "settings")


def compare_foreign(request: ForeignRequest) -> ForeignAnswer:
    """Read both sides, and judge. BadRequestError: a file of either cannot be read."""
    problems, paths = Problems(), request.ours.paths if request.ours.kind == "log" else ()
    problems.tried(lambda: log_sources(paths))
    golden = problems.having(problems.tried(lambda: _golden(request.golden)))
    log, found = read_side(request.ours)
    failed = ending_failure(log, found)
    ended = f"the run ended as {log.run.status}: {log.run.failure}" if log.run and log.run.status != "ok" else ""
    doubts = (failure_sentence(failed.failure) if failed else ended, _other_settings(request.ours.paths, golden))
    judged = judge_log(log, golden, request.window, request.thresholds, doubts=filter(None, doubts))
    if golden.log is not None:
        judged = replace(judged, settings=_differing(log, golden.log))
    verdict = comparison_outcome(judged.comparison, fail_on_improvement=request.fail_on_improvement)
    is_growing = found is None and bool(log.truncated or not log.iterations)
    return answer_of(judged, verdict, is_growing=is_growing)


def answer_of(
    judged: ForeignComparison, verdict: tuple[Outcome, ExitCode], *, is_growing: bool = False
) -> ForeignAnswer:
    """Return the answer. ``is_growing``: the job may still write its log."""
    return ForeignAnswer.of(judged, judged=judged, outcome=verdict[0], exit_code=verdict[1], is_growing=is_growing)


def _golden(side: Side) -> ForeignGolden:
    if side.kind in ("log", "run"):
        return golden_of(read_side(side)[0])
    path = golden_file(side.given) or Path(side.given)
    try:
        return read_foreign_golden(path)
    except BadRequestError as error:
        raise BadRequestError(error.message, remedy=(path.is_file() and error.remedy) or _NAME_GOLDEN) from error
