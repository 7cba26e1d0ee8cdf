"""Reads from a log when its job ran, how it ended, what is missing, and where it contradicts the settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from harness.errors import BadRequestError, Problems
from harness.experiment.experiment import MIN_STEPS, ExperimentSpec
from harness.failures.failure_signs import RankFailure
from harness.failures.first_failure import FirstFailure
from harness.foreign.log import ForeignLog
from harness.records.rank import RankRecord
from harness.records.run import IMPORTED, ImportedLog, LogFile, LoggedThroughput, StartSource, Status
from harness.units import counted, utc_time

_TITLES = {"bridge": "Megatron-Bridge", "megatron-lm": "Megatron-LM"}
_MANY_RANKS = 8


def size_contradictions(log: ForeignLog, spec: ExperimentSpec) -> list[BadRequestError]:
    """Return where the log contradicts the settings: such a record would describe a job that never ran."""
    problems, ranks = Problems(), counted(spec.num_gpus, "rank")
    if log.world_size not in (None, spec.num_gpus):
        problem = f"the log has {counted(log.world_size or 0, 'rank')}, the settings have {spec.num_gpus}"
        problems.add(problem, f"give -ng {log.world_size}")
    last = max((report.rank for report in log.memory), default=0)
    if last >= spec.num_gpus and log.world_size is None:
        problem = f"the log contains rank {last}, but the settings have only {ranks}"
        problems.add(problem, f"give -ng {last + 1} or more")
    sizes = {row.global_batch_size for row in log.iterations if row.global_batch_size is not None}
    if sizes and sizes != {spec.batch.global_batch_size}:
        listed = ", ".join(map(str, sorted(sizes)))
        problem = f"the log has a global batch size of {listed}, the settings have {spec.batch.global_batch_size}"
        remedy = f"give -gb {listed}" if len(sizes) == 1 else "mbr-perf cannot import a job whose batch size grows"
        problems.add(problem, remedy)
    return problems.found


def source_of(
    log: ForeignLog,
    clock: tuple[int, bool],
    files: tuple[LogFile, ...],
    ranks: Sequence[RankRecord],
    num_ranks: int,
    start_source: StartSource,
    ended: "Ending",
) -> ImportedLog:
    """Return the log for the record. ``clock``: the rank that printed the iterations, and whether the log names it."""
    return ImportedLog(
        source_format=log.format,
        files=files,
        interval=log.interval,
        clock_rank=clock[0],
        is_clock_named=clock[1],
        total_iterations=log.total,
        throughput=tuple(
            LoggedThroughput(step=row.number - 1, tflops_per_gpu=row.tflops_per_gpu)
            for row in log.iterations
            if row.tflops_per_gpu is not None and 0 < row.tflops_per_gpu < float("inf")
        ),
        first_line=log.first_time,
        start_source=start_source,
        failed_rank=ended.first.failure.rank if ended.first else None,
        provisional=ended.provisional,
        unsaid=_missing_facts(ranks, num_ranks),
    )


def notes_on(log: ForeignLog, imported: ImportedLog) -> tuple[str, ...]:
    """Return notes: where the record comes from, what its figures are, what the log does not contain."""
    whose = _TITLES[imported.source_format] if imported.source_format else "unknown origin"
    clock = f"step times: from rank {imported.clock_rank}; an iteration ends for all ranks at once"
    assumed = "" if imported.is_clock_named else " (the log does not name the rank; the format prints them on the last)"
    mean = f"the log has a line every {imported.interval} iterations: each time is the mean over them"
    return (
        f"{IMPORTED}a training log ({whose}, {counted(len(imported.files), 'file')}): mbr-perf measured nothing",
        *([clock + assumed] if log.iterations else []),
        *([mean] if imported.interval > 1 else []),
        *(f"the log does not contain {what}" for what in imported.unsaid),
        *log.notes,
    )


def _missing_facts(ranks: Sequence[RankRecord], num_ranks: int) -> tuple[str, ...]:
    always = "software, driver and device; the settings are those of the import"
    read = [rank.rank for rank in ranks if rank.memory]
    if not read:
        return (always, "the memory of any rank")
    if len(read) == num_ranks:
        return (always,)
    listed = ", ".join(map(str, read[:_MANY_RANKS])) + (" and others" if len(read) > _MANY_RANKS else "")
    return (always, f"the memory of {num_ranks - len(read)} of {num_ranks} ranks; only that of rank {listed}")


# Times of a log mostly name no zone. No time zone is further ahead of UTC.
_MOST_AHEAD = timedelta(hours=14)
_NO_ZONE = "; they name no time zone, so mbr-perf assumes UTC"


@dataclass(frozen=True)
class JobTimes:
    """Times in UTC. ``started_at`` is the time of the import if the start is unknown; ``note`` describes the times."""

    started_at: str
    finished_at: str
    duration_s: float
    source: StartSource
    note: str


def job_times(log: ForeignLog, now: datetime) -> JobTimes:
    """Return the times of the job, which are those of the log's first and last line."""
    first, last = _time(log.first_time), _time(log.last_time)
    if first is None or first > now + _MOST_AHEAD:
        future = f"the log's first time, {log.first_time}, is in the future"
        why = future if first else "the log does not contain the time of the job"
        note = f"{why}: history shows the run at the time of its import, marked ?"
        return JobTimes(_text(now), _text(now), 0.0, "unknown", note)
    duration = max(last - first, timedelta()) if last else timedelta()
    has_zone = datetime.fromisoformat((log.first_time or "").replace(",", ".")).tzinfo is not None
    note = f"start time: from the log's lines{'' if has_zone else _NO_ZONE}"
    return JobTimes(_text(first), _text(first + duration), duration.total_seconds(), "log", note)


def _text(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="seconds")


def _time(written: str | None) -> datetime | None:
    """Return the time; None if it is no valid time, or not between the years 2000 and 3000."""
    try:
        when = utc_time((written or "").replace(",", "."))
    except ValueError:
        return None
    return when if 2000 <= when.year < 3000 else None


@dataclass(frozen=True)
class Ending:
    """``failure``: one sentence if the job failed; ``first``: the failure in the log, None if the job ended well.

    ``notes``: failures in the log that did not end the job. ``provisional``: that the log ends before its job.
    """

    status: Status
    failure: str | None = None
    first: FirstFailure | None = None
    notes: tuple[str, ...] = ()
    provisional: str = ""


# The job's time limit or its user ended it: no failure, if complete steps stand before.
_STOPPED = ("slurm_time_limit", "run_time_limit", "slurm_cancelled", "slurm_step_cancelled", "sigint", "sigterm")


def ending_failure(log: ForeignLog, found: FirstFailure | None) -> FirstFailure | None:
    """Return the failure that ended the job before its last iteration; None if its user or its time limit did."""
    is_whole = log.iterations and log.truncated is None
    is_stopped = found and found.failure.entry in _STOPPED and len(log.iterations) >= MIN_STEPS
    return None if is_whole or is_stopped else found


def ending(log: ForeignLog, found: FirstFailure | None) -> Ending:
    """Return how the job ended: well if no failure ended it, and losses and gradients are finite.

    A failure from which the job recovered, or after its last iteration, is a note.
    """
    if first := ending_failure(log, found):
        return Ending("oom" if first.failure.kind == "oom" else "failed", failure_sentence(first.failure), first)
    if not log.iterations:
        return Ending("failed", "the log contains no iteration")
    notes = (f"the log shows a failure that did not end the job {_quoted(found.failure, 200)}",) if found else ()
    if bad := log.not_finite():
        broken = f"{bad.reason} at iteration {bad.first.number} ({bad.first.where})"
        return Ending("failed", "; ".join(filter(None, (broken, log.truncated))), notes=notes)
    return Ending("ok", notes=notes, provisional=log.truncated or "")


def failure_sentence(failure: RankFailure) -> str:
    """Return ``rank 3 ran out of memory after iteration 2 (FILE:LINE): TEXT``; ``the job`` if no rank is known."""
    who = "the job" if failure.rank is None else f"rank {failure.rank}"
    when = "" if failure.after_step is None else f" after iteration {failure.after_step}"
    what = "ran out of memory" if failure.kind == "oom" else "failed"
    return f"{who} {what}{when} {_quoted(failure, 300)}"


def _quoted(failure: RankFailure, most: int) -> str:
    return f"({failure.where}): {failure.text[:most]}"
