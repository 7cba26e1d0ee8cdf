"""Step times and endings of imported logs."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from harness.imports.log.values import ForeignLog
from harness.judging.oom.failure_scan import RankFailure
from harness.judging.oom.first_failure import FirstFailure
from harness.records.run import StartSource, Status
from harness.units import utc_time

# Times of a log mostly name no zone, and no place on earth is further ahead of UTC.
_MOST_AHEAD = timedelta(hours=14)


@dataclass(frozen=True)
class JobTimes:
    """UTC. Where nobody tells, ``started_at`` is the time of the import; ``note`` says for people what the times are."""

    started_at: str
    finished_at: str
    duration_s: float
    source: StartSource
    note: str


def job_times(log: ForeignLog, told: datetime | None, now: datetime) -> JobTimes:
    """``told`` goes before the log, whose times are those from the first to the last line of an iteration."""
    first, last = _time(log.first_time), _time(log.last_time)
    duration = max(last - first, timedelta()) if first and last else timedelta()
    if told is not None:
        return _times(told, duration, "told", f"started at {_text(told)}, as --started_at says")
    if first is None:
        return _unknown(now, "the log does not tell when the job ran")
    if first > now + _MOST_AHEAD:
        return _unknown(now, f"the log's first time is {log.first_time}, which is yet to come")
    zone = "" if _has_zone(log.first_time) else "; they name no time zone and are taken for UTC"
    return _times(first, duration, "log", f"when it ran is told by the log's lines{zone}")


def _times(start: datetime, duration: timedelta, source: StartSource, note: str) -> JobTimes:
    return JobTimes(_text(start), _text(start + duration), duration.total_seconds(), source, note)


def _unknown(now: datetime, why: str) -> JobTimes:
    note = f"{why}: history has it at the time of its import, marked ?; import --started_at TIME tells it"
    return _times(now, timedelta(), "unknown", note)


def _text(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="seconds")


def _time(written: str | None) -> datetime | None:
    """None for what is no time of a year that a job can have run in."""
    try:
        when = utc_time((written or "").replace(",", "."))
    except ValueError:
        return None
    return when if 2000 <= when.year < 3000 else None


def _has_zone(written: str | None) -> bool:
    return datetime.fromisoformat((written or "").replace(",", ".")).tzinfo is not None


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
