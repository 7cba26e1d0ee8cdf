"""Shows a job for people and as JSON: its state and its runs. Cancels it."""

from pathlib import Path
from typing import Literal

from harness.cluster.collecting import JobRuns, runs_of
from harness.cluster.controller import Controller
from harness.cluster.following import watched
from harness.cluster.state import JobState
from harness.errors import BadRequestError
from harness.records.collect import read_heartbeats
from harness.records.job import JobRun, SubmittedRecord, read_job, read_submitted
from harness.records.run import RunRecord, Status
from harness.show.json import Document, Shown
from harness.show.page import GAP, Column, Facts, Page, Table
from harness.units import command_text, counted


class RunRow(Shown):
    """One run of a job. ``where``: the phase and steps of its first rank while it runs."""

    run_id: str
    run_dir: str
    status: Status | None
    failure: str | None
    where: str


class JobDocument(Document):
    """``mbr-perf jobs status --json``. ``job_id`` is null if not submitted; ``cluster_state``: as last asked."""

    job_dir: str
    what: Literal["run", "sweep", "nightly"]
    subject: str
    name: str
    created_at: str
    job_id: str | None
    submitted_at: str | None
    is_settled: bool
    state: str
    cluster_state: tuple[JobState, ...]
    runs: tuple[RunRow, ...]


class CancelledDocument(Document):
    """``mbr-perf jobs cancel --json``."""

    job_dir: str
    job_id: str
    is_cancelled: Literal[True] = True


def standing(job_dir: Path, controller: Controller) -> JobDocument:
    """Return the state of a job. Asks the cluster unless every run is committed."""
    job, submitted = read_job(job_dir), read_submitted(job_dir)
    found = runs_of(job)
    later = job.runs[len(found.committed) :] if found.due or found.filled_by else ()
    rows = [_row(run, record) for run, record in found.committed]
    rows += [_row(run, where="no results" if found.filled_by else "") for run in later]
    is_asked = submitted is not None and (found.filled_by or not found.are_settled)
    state = controller.state(submitted) if submitted is not None and is_asked else None
    return JobDocument.of(
        job,
        job_id=submitted and submitted.job_id,
        submitted_at=submitted and submitted.submitted_at,
        is_settled=found.are_settled,
        state=_word(found, state),
        cluster_state=[state] if state else [],
        runs=rows,
    )


def _word(found: JobRuns, state: JobState | None) -> str:
    if found.filled_by:
        return f"{state.text if state else ''}; its folder now holds the run of job {found.filled_by}"
    if found.are_settled:
        return ", ".join(dict.fromkeys(record.status for _, record in found.committed))
    if state is None:
        return "prepared, not submitted"
    return state.text + ("; collect it with mbr-perf jobs wait" if state.has_ended else "")


def _row(run: JobRun, record: RunRecord | None = None, where: str = "") -> RunRow:
    beats = () if record or where else read_heartbeats(Path(run.run_dir) / "ranks" / "rank_000.progress.jsonl")[0]
    if beats:
        steps = [beat.step for beat in beats if beat.step is not None and beat.seconds is not None]
        where = f"{beats[-1].phase}{f' {steps[-1] + 1}/{run.spec.measure.max_steps}' if steps else ''}"
    status, failure = (record.status, record.failure) if record else (None, None)
    return RunRow.of(run, status=status, failure=failure, where=where)


def cancel(job_dir: Path, controller: Controller) -> SubmittedRecord:
    """Ask the cluster to end the job. BadRequestError: it has already ended."""
    watch = watched(job_dir)
    if watch.job.runs and not watch.is_open:
        raise BadRequestError(
            f"{job_dir}: this job has already ended", remedy=f"{command_text('jobs', 'wait', job_dir)} judges it"
        )
    controller.cancel(watch.submitted)
    return watch.submitted


def job_page(job: JobDocument) -> Page:
    """Return the state of the job, what it is, and a row per run."""
    facts = [
        ("Job", job.job_dir),
        *([("Queue", f"{job.job_id}, submitted {job.submitted_at}")] if job.job_id else []),
        ("For", job.what if job.what == "run" else f"{job.what} {job.subject}"),
    ]
    columns = (Column("Run", whole=True), Column("State", long=True))
    texts = (": ".join(filter(None, (run.status or run.where or "not started", run.failure))) for run in job.runs)
    runs = Table(columns, tuple((run.run_id, text) for run, text in zip(job.runs, texts, strict=True)))
    done = f"{sum(run.status is not None for run in job.runs)} of {counted(len(job.runs), 'run')} done"
    blocks = (Facts(tuple(facts), 7), *((GAP, runs) if job.runs else ()))
    return Page(blocks, answer=f"Job {job.job_id or 'not submitted'}: {job.state}; {done}.")
