"""The runs of a job on disk, and how an ended job is collected, with the reasons of the cluster and the ranks."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.batch.launches import unstarted_record
from harness.cluster.state import CLUSTER_ENDED_IT, JobState
from harness.judge.readings import with_clocks
from harness.launch.environment import this_host
from harness.measure.ranks import status_of, suspicions
from harness.records.collect import LaunchOutcome, collect
from harness.records.job import (
    LOGS,
    JobRecord,
    JobRun,
    SubmittedRecord,
    attempt_files,
    attempts_of,
    past_time_limit,
    read_submitted,
)
from harness.records.rank import RankRecord, placed
from harness.records.redact import redact
from harness.records.run import RunRecord, Status
from harness.records.store import RECORD, write_record
from harness.records.strict_json import read_document
from harness.units import counted


@dataclass(frozen=True)
class JobRuns:
    """The runs of a job in order. ``due``: the next run to commit; None when the job has no more.

    A failed run is the last run of its job; ``dropped`` are the runs after it. ``filled_by``: the id of a later
    job whose run is in a folder of this job; then nothing is due.
    """

    committed: tuple[tuple[JobRun, RunRecord], ...]
    due: JobRun | None = None
    dropped: tuple[JobRun, ...] = ()
    filled_by: str = ""

    @property
    def are_settled(self) -> bool:
        """Return whether the job has runs, and none of them is due."""
        return self.due is None and bool(self.committed or self.filled_by)


def runs_of(job: JobRecord) -> JobRuns:
    """Return the runs of a job. BadRequestError if a record cannot be read."""
    submitted = read_submitted(Path(job.job_dir))
    committed: list[tuple[JobRun, RunRecord]] = []
    for place, run in enumerate(job.runs):
        later = job.runs[place + 1 :]
        record = read_document(Path(run.run_dir) / RECORD, RunRecord) if is_committed(run) else None
        job_id = record.provenance.job_id if record else None
        is_own = submitted is None or job_id in (None, submitted.job_id)  # as far as the record names its job
        if record is None:
            return JobRuns(tuple(committed), run, later)
        if not is_own:
            return JobRuns(tuple(committed), filled_by=job_id or "")
        committed.append((run, record))
        if record.status != "ok":
            return JobRuns(tuple(committed), dropped=later)
    return JobRuns(tuple(committed))


def is_committed(run: JobRun) -> bool:
    """Return whether the run has a record. The record counts, whatever the cluster reports for the job."""
    return (Path(run.run_dir) / RECORD).is_file()


def drop_unstarted(runs: tuple[JobRun, ...]) -> None:
    """Remove the empty folders of runs. A folder with files stays."""
    for run in runs:
        folder = Path(run.run_dir)
        with suppress(OSError):
            for inner in ("ranks", "logs"):
                (folder / inner).rmdir()
            folder.rmdir()


UNKNOWN = "unknown"
# Slurm's log lines when the kernel kills a step. Slurm calls such a job FAILED, or even COMPLETED.
_HOST_MEMORY = re.compile(r"oom[-_]kill event|task \d+: Out Of Memory|\bOut Of Memory\b")


def collect_ended(job: JobRecord, submitted: SubmittedRecord, state: JobState, why: str = "") -> None:
    """Commit the due run of an ended job; drop those that never started. ``why``: if mbr-perf ended it."""
    runs = runs_of(job)
    if runs.due is not None and not is_committed(runs.due):
        record = _lost_run(job, submitted, runs.due, state, why or begun_again(job, state))
        Path(runs.due.run_dir).mkdir(mode=0o750, parents=True, exist_ok=True)
        write_record(Path(runs.due.run_dir), record)
    drop_unstarted(runs.dropped)


def begun_again(job: JobRecord, state: JobState) -> str:
    """Say why Kubernetes started the first pod again, which then ran nothing; empty if it did not, and for Slurm."""
    attempts = () if job.options.serves_nodes else attempts_of(Path(job.job_dir))
    refused = [why for attempt in attempts for why in attempt.refused]
    code = state.exit_code and f"exit code {state.exit_code}"
    unknown = "cause unknown: the TrainJob was deleted" if state.state == "DELETED" else ""
    cause = ", ".join(filter(None, (state.reason, code))) or unknown
    restarted = f"{job.options.cluster}: RESTARTED{f' ({cause})' if cause else ''}: {'; '.join(refused)}"
    return past_time_limit(job) or restarted if refused else ""


def _lost_run(job: JobRecord, submitted: SubmittedRecord, run: JobRun, state: JobState, why: str) -> RunRecord:
    """Return the record of a run that ended before its job could write one. Its time runs from the submission."""
    spec, collected = run.spec, collect(Path(run.run_dir), run.spec.num_gpus)
    ranks = with_clocks(placed(collected.ranks, spec), collected.nodes, spec.measure.window)
    status, failure, note = _ending(job, state, ranks, why)
    record = unstarted_record(run, failure, this_host())
    first = next((rank for rank in ranks if rank.device), None)
    waited = datetime.now(UTC) - datetime.fromisoformat(submitted.submitted_at)
    origin = {
        "started_at": submitted.submitted_at,
        "duration_s": max(0.0, round(waited.total_seconds(), 3)),
        "command": job.command,
        "container": job.options.container_image,
        "job_id": submitted.job_id,
        "hostname": first.hostname if first else UNKNOWN,
        "platform": UNKNOWN,
        "processor": UNKNOWN,
        "num_cpus": None,
    }
    return record.model_copy(
        update={
            "status": status,
            "ranks": ranks,
            "suspect": suspicions(spec, record.effective, collected, ranks),
            "notes": (
                *run.notes,
                f"{job.options.cluster} job {submitted.job_id} wrote no record for this run",
                *note,
                *collected.notes,
            ),
            "no_prediction": "the job ended before the run was committed",
            "provenance": record.provenance.model_copy(update=origin),
        }
    )


def cluster_failure(job: JobRecord, state: JobState) -> str:
    """Say why the job ended, in the cluster's words, for the ``failure`` of its run."""
    word = "LAUNCH_FAILED" if state.kind == "launch_failed" else state.state
    has_code = state.kind == "failed" and state.exit_code not in ("", "0:0")
    code = f"exit code {state.exit_code}" if has_code else ""
    details = ", ".join(filter(None, (state.reason, code)))
    where = f" on {state.nodes}" if state.nodes and state.kind in CLUSTER_ENDED_IT else ""
    again = f"REQUEUED {counted(state.restarts, 'time')}, then " if state.restarts else ""
    lost = ", and the run left no record" if state.kind in ("finished", "purged") else ""
    return f"{job.options.cluster}: {again}{word}{f' ({details})' if details else ''}{where}{lost}"


def _ending(
    job: JobRecord, state: JobState, ranks: tuple[RankRecord, ...], why: str
) -> tuple[Status, str, tuple[str, ...]]:
    """Status, failure and notes. The cluster's reason counts if it ended the job; else the ranks' reason, if any."""
    reason = why or cluster_failure(job, state)
    # If the step, not the script, exhausted the host's memory, only the job's log shows it, not Slurm's state.
    is_own_end = state.kind in ("failed", "finished") and not why
    if is_own_end and any(_HOST_MEMORY.search(text) for text in log_ends(job)):
        state_word = f"{job.options.cluster} state {state.state}; the job's log shows that the kernel killed it"
        return "failed", f"{job.options.cluster}: OUT_OF_MEMORY of a node's host memory ({state_word})", ()
    status, failure = status_of(LaunchOutcome(status="failed", reason=reason), ranks)
    if why or state.kind in CLUSTER_ENDED_IT:
        also = (f"failure that the ranks recorded: {failure}",) if failure and failure != reason else ()
        return ("interrupted" if state.kind == "cancelled" and not why else "failed"), reason, also
    if failure and failure != reason:
        return status, failure, (reason,)
    printed = before_python(job)
    return status, f"{reason}: {printed}" if printed else reason, ()


_TAIL_BYTES = 1 << 16
_NUM_LINES, _LINE_CHARS = 3, 200
# Lines that follow from the first error of a step, on every node.
_CONSEQUENCE = re.compile(r"srun: (Job step aborted|Terminating|Waiting|error: .*(Exited with exit code|Terminated))")


def log_ends(job: JobRecord) -> Iterator[str]:
    """Yield the last 64 KiB of every log of the job."""
    for log in sorted((Path(job.job_dir) / LOGS).glob("*.out")):
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            yield stream.read().decode(errors="replace")


def before_python(job: JobRecord) -> str:
    """Return the last lines of a job that ended before its first node started; else empty."""
    if attempt_files(Path(job.job_dir)):
        return ""
    lines = [line.strip() for text in log_ends(job) for line in text.splitlines()]
    printed = [line for line in lines if line and not _CONSEQUENCE.match(line)]
    if not printed:
        return ""
    ends = " | ".join(redact(line)[:_LINE_CHARS] for line in printed[-_NUM_LINES:])
    return f"mbr-perf did not start on the nodes; the job's log ends: {ends} (all of it: {Path(job.job_dir) / LOGS})"
