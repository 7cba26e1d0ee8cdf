"""Says why memory ran out at this iteration and not at an earlier one, from what the log reported until then."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from harness.failures.first_failure import FirstFailure
from harness.failures.verdict import AllocatorFigures, OomVerdict, table
from harness.foreign.log import ForeignLog, RankMemory
from harness.units import counted, format_bytes

_LEAST_REPORTS = 4
_RISING = 0.8  # of the reports are above the one before
_GROWN = 0.05  # of the last report: less is noise
_STILL = 0.25  # of the growth is in the second half: a warm-up ends before
_STATES = 0.6  # of the device, held between iterations: weights, gradients and optimizer states
_USUAL = 2  # iterations that ran before
_HIGHER = 0.01  # by so much another batch has a higher peak


def timed(log: ForeignLog, first: FirstFailure, *, is_dense: bool) -> tuple[OomVerdict, str]:
    """Return the verdict with the advice that the timing asks for, and why it failed now; empty if nothing shows it.

    ``is_dense``: the model is known to have no experts.
    """
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
        if not before or not peak or peak < (1 + _HIGHER) * before:
            continue
        if (later.allocated_bytes or 0) < (1 + _HIGHER) * (earlier.allocated_bytes or 0):
            low, high = format_bytes(before), format_bytes(peak)
            rose = f"rose from {low} (iteration {earlier.iteration}) to {high} ({later.iteration})"
            last = f"rank {later.rank}'s peak {rose}, its tensors between iterations did not: batches differ in length"
    return last


def _unexplained(num: int, after: int) -> str:
    if after < _USUAL:
        return ""
    ran = f"{counted(num, 'reported iteration')} ran before" if num else f"iterations up to {after} ran"
    return f"{ran}, so this one may have the longest batch so far"
