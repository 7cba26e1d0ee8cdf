"""What a log says of its job: when it ran, how it ended, what it does not say, where it contradicts its settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from harness.errors import BadRequestError
from harness.experiment.experiment import ExperimentSpec
from harness.judging.oom.failure_scan import RankFailure
from harness.judging.oom.first_failure import FirstFailure
from harness.records.foreign.log import ForeignLog
from harness.records.rank import RankRecord
from harness.records.run import IMPORTED, ImportedLog, LogFile, LoggedThroughput, StartSource, Status
from harness.units import counted, utc_time

_TITLES = {"bridge": "Megatron-Bridge", "megatron-lm": "Megatron-LM"}
_MANY_RANKS = 8


def disagreements(log: ForeignLog, spec: ExperimentSpec) -> list[BadRequestError]:
    """What the log says otherwise than the settings: such a record would be of a job that never ran."""
    found: list[tuple[str, str]] = []
    ranks = counted(spec.num_gpus, "rank")
    if log.world_size not in (None, spec.num_gpus):
        told = f"the log is of {counted(log.world_size or 0, 'rank')}, the settings of {spec.num_gpus}"
        found.append((told, f"-ng {log.world_size}"))
    last = max((one.rank for one in log.memory), default=0)
    if last >= spec.num_gpus and log.world_size is None:
        found.append((f"the log tells of rank {last}, the settings have {ranks}", "-ng"))
    sizes = {one.global_batch_size for one in log.iterations if one.global_batch_size is not None}
    if sizes and sizes != {spec.batch.global_batch_size}:
        listed = ", ".join(map(str, sorted(sizes)))
        told = f"the log has a global batch size of {listed}, the settings of {spec.batch.global_batch_size}"
        found.append((told, f"-gb {listed}" if len(sizes) == 1 else "a batch that grows has no one step time"))
    return [BadRequestError(told, remedy=remedy) for told, remedy in found]


def source_of(
    log: ForeignLog,
    clock: tuple[int, bool],
    files: tuple[LogFile, ...],
    ranks: Sequence[RankRecord],
    num_ranks: int,
    start_source: StartSource,
    imported_at: str,
) -> ImportedLog:
    """The log as the record keeps it. ``clock``: the rank that printed the iterations, and whether that is told."""
    return ImportedLog(
        source_format=log.format,
        files=files,
        interval=log.interval,
        clock_rank=clock[0],
        is_clock_told=clock[1],
        total_iterations=log.total,
        throughput=tuple(
            LoggedThroughput(step=one.number - 1, tflops_per_gpu=one.tflops_per_gpu)
            for one in log.iterations
            if one.tflops_per_gpu is not None and 0 < one.tflops_per_gpu < float("inf")
        ),
        first_line=log.first_time,
        last_line=log.last_time,
        start_source=start_source,
        imported_at=imported_at,
        unsaid=_unsaid(ranks, num_ranks),
    )


def notes_on(log: ForeignLog, imported: ImportedLog) -> tuple[str, ...]:
    """For people: what the record is, what its figures are, what the log does not say."""
    whose = _TITLES[imported.source_format] if imported.source_format else "unknown origin"
    clock = f"step times are those that rank {imported.clock_rank} printed; an iteration ends for all ranks at once"
    taken = "" if imported.is_clock_told else " (the log does not name the rank; the format prints them on the last)"
    mean = f"a line every {imported.interval} iterations: each time is a mean over them"
    return (
        f"{IMPORTED}a training log ({whose}, {counted(len(imported.files), 'file')}): mbr-perf measured nothing",
        *([clock + taken] if log.iterations else []),
        *([mean] if imported.interval > 1 else []),
        *(f"the log does not tell {what}" for what in imported.unsaid),
        *log.notes,
    )


def _unsaid(ranks: Sequence[RankRecord], num_ranks: int) -> tuple[str, ...]:
    always = "software, driver and device; the settings are those it was imported with"
    read = [rank.rank for rank in ranks if rank.memory]
    if not read:
        return (always, "the memory of any rank")
    if len(read) == num_ranks:
        return (always,)
    listed = ", ".join(map(str, read[:_MANY_RANKS])) + (" and others" if len(read) > _MANY_RANKS else "")
    return (always, f"the memory of {num_ranks - len(read)} of {num_ranks} ranks; it has that of rank {listed}")


# Times of a log mostly name no zone, and no place on earth is further ahead of UTC.
_MOST_AHEAD = timedelta(hours=14)
_NO_ZONE = "; they name no time zone and are taken for UTC"
_TELL = "import --started_at TIME tells it"


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
    start, why, note = now, "", ""
    source: StartSource = "unknown"
    if told is not None:
        start, source, note = told, "told", f"started at {_text(told)}, as --started_at says"
    elif first is None:
        why = "the log does not tell when the job ran"
    elif first > now + _MOST_AHEAD:
        why = f"the log's first time is {log.first_time}, which is yet to come"
    else:
        start, source = first, "log"
        note = f"when it ran is told by the log's lines{'' if _has_zone(log.first_time) else _NO_ZONE}"
    if why:
        duration, note = timedelta(), f"{why}: history has it at the time of its import, marked ?; {_TELL}"
    return JobTimes(_text(start), _text(start + duration), duration.total_seconds(), source, note)


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
    notes = (f"the log shows a failure that did not end the job ({_words(found.failure, 200)}",) if found else ()
    last = log.iterations[-1] if log.iterations else None
    if last and (log.ended or last.number + log.interval > num_steps):
        bad = next((one for one in log.iterations if one.is_loss_broken), None)
        if bad is None:
            return Ending("ok", notes=notes)
        return Ending("failed", f"the loss is not a number at iteration {bad.number} ({bad.where})", notes=notes)
    if found is not None:
        return Ending("oom" if found.failure.kind == "oom" else "failed", _sentence(found.failure), found)
    if last is None:
        return Ending("failed", "the log holds no iteration")
    told = f"the log ends at iteration {last.number} of {num_steps} ({last.where}), and does not say why"
    return Ending("failed", told)


def _sentence(one: RankFailure) -> str:
    who = "a rank that the log does not name" if one.rank is None else f"rank {one.rank}"
    when = "" if one.after_step is None else f" after iteration {one.after_step}"
    what = "ran out of memory" if one.kind == "oom" else "failed"
    return f"{who} {what}{when} ({_words(one, 300)}"


def _words(one: RankFailure, most: int) -> str:
    return f"{one.where}): {one.text[:most]}"
