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


def size_contradictions(log: ForeignLog, spec: ExperimentSpec) -> list[BadRequestError]:
    """Return where the log contradicts the settings: such a record would describe a job that never ran."""
    problems, last = Problems(), max((report.rank for report in log.memory), default=0)
    ranks = log.world_size or max(last + 1, spec.num_gpus)
    if ranks != spec.num_gpus:
        problem = f"the log has {counted(ranks, 'rank')}, the settings have {spec.num_gpus}"
        problems.add(problem, f"give -ng {ranks}")
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
    mean = f"the log has a line every {imported.interval} iterations: each time is the mean over them"
    return (
        f"{IMPORTED}a training log ({whose}, {counted(len(imported.files), 'file')}): mbr-perf measured nothing",
        *([clock] if log.iterations else []),
        *([mean] if imported.interval > 1 else []),
        *(f"the log does not contain {what}" for what in imported.unsaid),
        *log.notes,
    )


def _missing_facts(ranks: Sequence[RankRecord], num_ranks: int) -> tuple[str, ...]:
    always = "software, driver and device; the settings are those of the import"
    num_lacking = num_ranks - sum(rank.memory is not None for rank in ranks)
    return (always, f"the memory of {num_lacking} of {num_ranks} ranks") if num_lacking else (always,)


_MOST_AHEAD = timedelta(hours=14)
"""Times of a log mostly name no zone, and count as UTC. No time zone is further ahead of it."""


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
        note = f"the log names no time of the past ({log.first_time}): history shows the run at its import, marked ?"
        return JobTimes(_text(now), _text(now), 0.0, "unknown", note)
    duration = max(last - first, timedelta()) if last else timedelta()
    note = "start time: from the log's lines, in UTC where they name no time zone"
    return JobTimes(_text(first), _text(first + duration), duration.total_seconds(), "log", note)


def _text(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="seconds")


def _time(written: str | None) -> datetime | None:
    try:
        return utc_time((written or "").replace(",", "."))
    except ValueError:
        return None


@dataclass(frozen=True)
class Ending:
    """``first``: the failure that ended the job. ``notes``: other failures. ``provisional``: the log ends early."""

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
    """Return how the job ended: well if no failure ended it, and losses and gradients are finite."""
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
