"""How a job ended, as far as its training log tells."""

import math
from dataclasses import dataclass

from harness.analysis.oom.failure_scan import RankFailure
from harness.analysis.oom.first_failure import FirstFailure
from harness.records.foreign.values import ForeignLog
from harness.records.run import Status


@dataclass(frozen=True)
class Ending:
    """``failure``: one sentence where it ended badly; ``first``: what the log shows of it, None where it ended well.

    ``notes``: what the log shows that did not end the job.
    """

    status: Status
    failure: str | None = None
    first: FirstFailure | None = None
    notes: tuple[str, ...] = ()


def ending(log: ForeignLog, found: FirstFailure | None, num_steps: int) -> Ending:
    """A job is well when all of its ``num_steps`` iterations are there, and every loss is a number.

    A failure that the job got over, or that came after its last iteration, is a note. A log that stops before its end
    without a word is of a job that failed: nobody saw it end well.
    """
    notes = (_got_over(found.failure),) if found else ()
    if _is_whole(log, num_steps):
        bad = _not_a_number(log)
        return Ending("failed", bad, notes=notes) if bad else Ending("ok", notes=notes)
    if found is None:
        return Ending("failed", _short(log, num_steps))
    return Ending("oom" if found.failure.kind == "oom" else "failed", _sentence(found), found)


def _is_whole(log: ForeignLog, num_steps: int) -> bool:
    return bool(log.iterations) and (log.ended or log.iterations[-1].number + log.interval > num_steps)


def _short(log: ForeignLog, num_steps: int) -> str:
    if not log.iterations:
        return "the log holds no iteration"
    last = log.iterations[-1]
    return f"the log ends at iteration {last.number} of {num_steps} ({last.where}), and does not say why"


def _not_a_number(log: ForeignLog) -> str | None:
    for one in log.iterations:
        if one.nan_iterations or (one.loss is not None and not math.isfinite(one.loss)):
            return f"the loss is not a number at iteration {one.number} ({one.where})"
    return None


def _sentence(found: FirstFailure) -> str:
    one = found.failure
    who = "a rank that the log does not name" if one.rank is None else f"rank {one.rank}"
    when = "" if one.after_step is None else f" after iteration {one.after_step}"
    what = "ran out of memory" if one.kind == "oom" else "failed"
    return f"{who} {what}{when} ({one.where}): {one.text[:300]}"


def _got_over(one: RankFailure) -> str:
    return f"the log shows a failure that did not end the job ({one.where}): {one.text[:200]}"
