"""When an imported job ran: as told, else as its log's lines say, else unknown. The age of a file is no evidence of it."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from harness.records.foreign.values import ForeignLog
from harness.records.imported import StartSource
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
