"""Makes a case of training logs: the first failure, figures before it, why it came then, and contradicted settings."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from harness.diagnose.values import Case, FailedRank, RankFigures, Status, is_dense
from harness.experiment.experiment import ExperimentSpec
from harness.failures.entries import entry
from harness.failures.failure_scan import FailureScan
from harness.failures.failure_signs import RankFailure
from harness.failures.first_failure import KILL_COUNT, LOCAL_RANK, FirstFailure, failure_of, survived_by
from harness.failures.verdict import AllocatorFigures, Confidence, OomVerdict, table
from harness.foreign.log import ForeignLog, NotFinite, RankMemory
from harness.units import counted, format_bytes

_MOST_NAMED = 8
# Skipped steps count as iterations: those before the window warm up.
_WARM_UP_SHARE = 0.5


def case_of_log(
    name: str, log: ForeignLog, scan: FailureScan, spec: ExperimentSpec | None, *, is_empty: bool = False
) -> Case:
    """Return the job of the lines; losses that are not finite explain an end that does not explain itself."""
    first = failure_of(scan, spec.gpu_type.memory_bytes if spec else None)
    harmless = first if first is not None and _is_harmless(first, log) else None
    first = None if harmless else first
    broken = log.not_finite()
    cause = broken if first is None or _is_weak(first) else None
    status, verdict, failed = _ending(log, first, cause, is_empty=is_empty)
    why_now = ""
    if first is not None and verdict is first.verdict:
        verdict, why_now = timed(log, first, is_dense=is_dense(spec))
    return Case(
        name=name,
        origin="log",
        status=status,
        verdict=verdict,
        failed=failed,
        spec=spec,
        ranks=_ranks(log, spec),
        tflops_per_gpu=_late([iteration.tflops_per_gpu for iteration in log.iterations]),
        step_time_s=_late([iteration.step_time_s for iteration in log.iterations]),
        has_nan=broken is not None or (first is not None and first.verdict.entry == "non_finite"),
        expandable_segments=scan.expandable_segments,
        why_now=why_now,
        num_iterations=len(log.iterations),
        said=first.failure.text if first else "",
        notes=(
            *_notes(first, harmless, survived_by(scan), broken, cause),
            *log.notes,
        ),
    )


def _ending(
    log: ForeignLog, first: FirstFailure | None, cause: NotFinite | None, *, is_empty: bool
) -> tuple[Status, OomVerdict, FailedRank | None]:
    if cause is not None:
        row = cause.first
        message = f"iteration {row.number}: lm loss {_shown(row.loss)}, grad norm {_shown(row.grad_norm)}"
        failed = FailedRank(row.rank, "non_finite_loss", message, f"in iteration {row.number}", row.where)
        sure: Confidence = "high" if cause.is_printed else "medium"
        return "failed", replace(entry("non_finite").verdict(), confidence=sure, reason=_divergence(cause)), failed
    if first is not None:
        return "oom" if first.verdict.is_oom else "failed", first.verdict, _failed(first)
    if is_empty:
        return "unknown", OomVerdict.of_ending("empty"), None
    if log.ended or (log.iterations and log.truncated is None):
        return "ok", OomVerdict("not_oom", "medium", "the job ended well"), None
    if log.truncated:
        return "unknown", OomVerdict.of_ending("truncated", how=log.truncated), None
    return "unknown", OomVerdict.of_ending("no_end"), None


def _notes(
    first: FirstFailure | None,
    harmless: FirstFailure | None,
    survived: RankFailure | None,
    broken: NotFinite | None,
    cause: NotFinite | None,
) -> Iterator[str]:
    if broken is not None and cause is None:
        yield f"Not finite: {_divergence(broken)}."
    if first is not None and cause is not None:
        yield f"How it ended: {first.verdict.reason} ({first.failure.where})."
    if harmless is not None:
        after = harmless.failure
        what = after.text if after.is_mention else "Slurm counted a process of the step that the kernel ended"
        yield f"Training ended well, in spite of this: {what} ({after.where})."
    if survived is not None:
        yield f"Iterations follow this line, so the job survived it: {survived.text} ({survived.where})."
    others = [failure.who or failure.where for failure in first.others] if first else []
    if others:
        listed = ", ".join(others[:_MOST_NAMED]) + (" ..." if len(others) > _MOST_NAMED else "")
        yield f"{counted(len(others), 'other rank')} failed too: {listed}"


def _is_harmless(first: FirstFailure, log: ForeignLog) -> bool:
    """Return whether training ended, and the only other sign is a mention or Slurm's count of killed processes."""
    is_at_its_end = log.ended or (bool(log.iterations) and log.total is not None and log.truncated is None)
    is_alone = all(failure.entry == KILL_COUNT for failure in first.others)
    return is_at_its_end and is_alone and (first.failure.is_mention or first.failure.entry == KILL_COUNT)


def _is_weak(first: FirstFailure) -> bool:
    """Return whether the failure does not explain itself: lost peers, a launcher's report, or an end from outside."""
    return first.failure.kind == "peer" or first.verdict.oom_class in ("unknown", "time_limit", "killed")


def _divergence(broken: NotFinite) -> str:
    row = broken.first
    rank = "" if row.rank is None else f"rank {row.rank}, "
    more = f"; {broken.count} of the {broken.of} iterations from there on" if broken.of > 1 else ""
    return f"{broken.reason} at iteration {row.number} ({rank}{row.where}){more}"


def _shown(value: float | None) -> str:
    return "missing" if value is None else f"{value:g}"


def _failed(first: FirstFailure) -> FailedRank:
    failure = first.failure
    when = [f"in {failure.moment}"] if failure.moment else []
    when += [f"after iteration {failure.after_step}"] if failure.after_step is not None else []
    return FailedRank(
        failure.rank, failure.kind, failure.text, " ".join(when), failure.where, _place(first), failure.moment
    )


def _place(first: FirstFailure) -> str:
    failure, figures = first.failure, first.verdict.figures
    local = LOCAL_RANK.search(failure.text)
    device = figures.device if figures else None
    numbers = (("task", failure.task), ("GPU", device), ("local rank", local[1] if local else None))
    known = ", ".join(f"{what} {number}" for what, number in numbers if number is not None)
    return " of ".join(filter(None, (known, failure.host)))


def _ranks(log: ForeignLog, spec: ExperimentSpec | None) -> tuple[RankFigures, ...]:
    allocated = log.highest(lambda figures: figures.max_allocated_bytes)
    reserved = log.highest(lambda figures: figures.max_reserved_bytes)
    ranks = sorted({figures.rank for figures in log.memory})
    return tuple(RankFigures(rank, stage_of(rank, spec), allocated.get(rank), reserved.get(rank)) for rank in ranks)


def stage_of(rank: int, spec: ExperimentSpec | None) -> int | None:
    """Return the pipeline stage of a rank in megatron-core's default order, in which stages vary slowest."""
    if spec is None or rank >= spec.num_gpus:
        return None
    return rank * spec.parallelism.pipeline_model_parallel_size // spec.num_gpus


def _late(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    late = known[int(len(known) * _WARM_UP_SHARE) :]
    return median(late) if late else None


_LEAST_REPORTS = 4
_RISING = 0.8  # of the reports are above the one before
_GROWN = 0.05  # of the last report: less is noise
_STILL = 0.25  # of the growth is in the second half: a warm-up ends before
_STATES = 0.6  # of the device, held between iterations: weights, gradients and optimizer states
_USUAL = 2  # iterations that ran before
_HIGHER = 0.01  # by so much another batch has a higher peak


def timed(log: ForeignLog, first: FirstFailure, *, is_dense: bool) -> tuple[OomVerdict, str]:
    """Return the verdict with the advice that the timing asks for, and why it failed now; empty if nothing shows it."""
    verdict, after = first.verdict, first.failure.after_step
    if verdict.oom_class != "capacity" or not verdict.has_activations or verdict.advice or after is None:
        return verdict, ""
    reports = _reports(log, first.failure.rank)
    states = "the first step created the optimizer's states, which stay"
    reasons = {
        "growth": _growth(reports),
        "states": _states(reports, verdict.figures) or (states if after == 1 else ""),
        "this_batch": _longer_batch(reports) or _unexplained(len(log.iterations), after),
    }
    name = next((name for name, why in reasons.items() if why), None)
    if name is None:
        return verdict, ""
    advice = re.sub(r"\{(.*?)\}", "" if is_dense else r"\1", str(table()["timing"][name]))
    return replace(verdict, advice=advice, recompute_helps=name != "growth"), reasons[name]


def _reports(log: ForeignLog, rank: int | None) -> Sequence[RankMemory]:
    """Return the reports of the failed rank since the last restart; of the rank that reported most if it has none."""
    began = log.restarts[-1] if log.restarts else 0
    known = [each for each in log.memory if each.allocated_bytes is not None and each.iteration >= began]
    ranks = [each.rank for each in known]
    whose = rank if rank in ranks else max(ranks, key=ranks.count, default=None)
    return [each for each in known if each.rank == whose]


def _growth(reports: Sequence[RankMemory]) -> str:
    held = [each.allocated_bytes or 0 for each in reports]
    if len(held) < _LEAST_REPORTS:
        return ""
    grown, steps = held[-1] - held[0], reports[-1].iteration - reports[0].iteration
    rising = sum(later > earlier for earlier, later in pairwise(held)) / (len(held) - 1)
    is_still = held[-1] - held[len(held) // 2] >= _STILL * grown
    if steps <= 0 or rising < _RISING or grown < _GROWN * held[-1] or not is_still:
        return ""
    first, last = reports[0], reports[-1]
    sizes = f"from {format_bytes(held[0])} (iteration {first.iteration}) to {format_bytes(held[-1])} ({last.iteration})"
    return f"rank {first.rank}'s tensors between iterations grew {sizes}, {format_bytes(grown // steps)} an iteration"


def _states(reports: Sequence[RankMemory], figures: AllocatorFigures | None) -> str:
    last, total = reports[-1] if reports else None, figures.total_bytes if figures else None
    if last is None or last.allocated_bytes is None or not total or last.allocated_bytes < _STATES * total:
        return ""
    size = f"{format_bytes(last.allocated_bytes)} ({last.allocated_bytes / total:.0%} of the device)"
    return f"rank {last.rank} held {size} after iteration {last.iteration}, when no activations are alive"


def _longer_batch(reports: Sequence[RankMemory]) -> str:
    """Say that batches differ where a peak rose and what is held between iterations did not, after the first report."""
    last = ""
    for earlier, later in pairwise(reports[1:]):
        before, peak = earlier.max_allocated_bytes, later.max_allocated_bytes
        is_held = (later.allocated_bytes or 0) >= (1 + _HIGHER) * (earlier.allocated_bytes or 0)
        if before and peak and peak >= (1 + _HIGHER) * before and not is_held:
            low, high = format_bytes(before), format_bytes(peak)
            rose = f"rose from {low} (iteration {earlier.iteration}) to {high} ({later.iteration})"
            last = f"rank {later.rank}'s peak {rose}, its tensors between iterations did not: batches differ in length"
    return last


def _unexplained(num: int, after: int) -> str:
    if after < _USUAL:
        return ""
    ran = f"{counted(num, 'reported iteration')} ran before" if num else f"iterations up to {after} ran"
    return f"{ran}, so this one may have the longest batch so far"
