"""What lies on disk of a job: its runs, and how an ended job is collected, with the reasons of Slurm and the ranks."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import harness
from harness.batch.launches import asides
from harness.experiment.effective import effective_recompute, settled_implementation
from harness.judging.readings import with_clocks
from harness.launch.environment import this_host
from harness.launch.slurm.state import SLURM_ENDED_IT, TaskState
from harness.records.collect import LaunchOutcome, collect
from harness.records.job import ATTEMPTS, LOGS, JobAttempt, JobRecord, JobRun, SubmittedRecord, read_submitted
from harness.records.rank import RankRecord
from harness.records.redact import redact
from harness.records.run import NodeSample, Provenance, RunRecord, Status
from harness.records.store import RECORD, write_record
from harness.records.strict_json import read_document
from harness.run.launched import placed
from harness.run.machine import software_for
from harness.run.provenance import git_branch, git_commit
from harness.run.ranks import status_of, suspicions


@dataclass(frozen=True)
class TaskRuns:
    """The runs of one task in order. ``due``: the one that is to be committed next; None when the task has no more.

    A run that ended badly is the last one of its task; ``dropped`` are those after it. ``filled_by``: another job, by its
    number in Slurm, whose run lies where one of this task was to lie, of which nothing is left; then nothing is due.
    """

    task: int
    committed: tuple[tuple[JobRun, RunRecord], ...]
    due: JobRun | None
    dropped: tuple[JobRun, ...]
    filled_by: str = ""


def task_runs(job: JobRecord) -> tuple[TaskRuns, ...]:
    """Every task of the job. BadRequestError for a record that cannot be read."""
    return tuple(_task(job, task) for task in range(job.num_tasks))


def committed_runs(job: JobRecord) -> tuple[tuple[JobRun, RunRecord], ...]:
    """All committed runs, task by task."""
    return tuple(pair for task in task_runs(job) for pair in task.committed)


def is_committed(run: JobRun) -> bool:
    """Whether the run's record is there: the truth about it, whatever Slurm says of the job."""
    return (Path(run.run_dir) / RECORD).is_file()


def drop_unstarted(runs: Iterator[JobRun] | tuple[JobRun, ...]) -> None:
    """Remove the folders of runs in which nothing was ever written; a folder that holds something stays."""
    for run in runs:
        folder = Path(run.run_dir)
        with suppress(OSError):
            for inner in ("ranks", "logs"):
                (folder / inner).rmdir()
            folder.rmdir()


def _task(job: JobRecord, number: int) -> TaskRuns:
    runs = [run for run in job.runs if run.task == number]
    submitted = read_submitted(Path(job.job_dir))
    committed: list[tuple[JobRun, RunRecord]] = []
    for place, run in enumerate(runs):
        if not is_committed(run):
            aside = _kept_aside(run, submitted)
            if aside is None:
                return TaskRuns(number, tuple(committed), run, tuple(runs[place + 1 :]))
            return TaskRuns(number, (*committed, (run, aside)), None, ())  # the other folders are another job's by now
        record = read_document(Path(run.run_dir) / RECORD, RunRecord)
        if not _is_of(record, submitted):
            aside = _kept_aside(run, submitted)
            own = () if aside is None else ((run, aside),)
            other = "" if own else record.provenance.job_id or ""
            return TaskRuns(number, (*committed, *own), None, (), other)
        committed.append((run, record))
        if record.status != "ok":
            return TaskRuns(number, tuple(committed), None, tuple(runs[place + 1 :]))
    return TaskRuns(number, tuple(committed), None, ())


def _is_of(record: RunRecord, submitted: SubmittedRecord | None) -> bool:
    """Whether the job wrote it, as far as the record says whose it is."""
    job_id = record.provenance.job_id
    return submitted is None or job_id is None or job_id == submitted.job_id


def _kept_aside(run: JobRun, submitted: SubmittedRecord | None) -> RunRecord | None:
    """The record of this job where its folder was moved aside for another attempt.

    Slurm counts from the start again some day: a record from before the submission is not of this job.
    """
    run_dir = Path(run.run_dir)
    for folder in asides(run_dir):
        path = folder / RECORD
        if submitted is not None and path.is_file():
            record = read_document(path, RunRecord)
            where = record.provenance
            finished, asked = (datetime.fromisoformat(at) for at in (where.finished_at, submitted.submitted_at))
            if where.job_id == submitted.job_id and finished > asked:
                return record
    return None


UNKNOWN = "unknown"
# Slurm's own lines about the kernel's kill of a step, whose job it calls FAILED, or even COMPLETED.
_HOST_MEMORY = re.compile(r"oom[-_]kill event|task \d+: Out Of Memory|\bOut Of Memory\b")


def collect_ended(job: JobRecord, submitted: SubmittedRecord, states: tuple[TaskState, ...], why: str = "") -> None:
    """Commit the run of every ended task that is due and that its job never committed, and drop those never started.

    ``why``: said in place of Slurm's state where this program ended the job. A record that comes meanwhile stays.
    """
    for task in task_runs(job):
        state = state_of(states, task.task)
        if not state.has_ended:
            continue
        if task.due is not None and not is_committed(task.due):
            record = lost_run(job, submitted, task.due, state, why)
            Path(task.due.run_dir).mkdir(mode=0o750, parents=True, exist_ok=True)
            write_record(Path(task.due.run_dir), record)
        drop_unstarted(task.dropped)


def state_of(states: tuple[TaskState, ...], task: int) -> TaskState:
    """The state of one task; of a job that Slurm tells as a whole, that of the job."""
    return next((state for state in states if task in state.tasks), states[-1])


def lost_run(job: JobRecord, submitted: SubmittedRecord, run: JobRun, state: TaskState, why: str = "") -> RunRecord:
    """The record of a run that ended before its job could write one."""
    spec = run.spec
    collected = collect(Path(run.run_dir), spec.num_gpus)
    ranks = with_clocks(placed(collected.ranks, spec), collected.nodes, spec.measure.window)
    status, failure, note = _ending(job, submitted, state, ranks, why)
    implementation = settled_implementation(spec)
    software, _ = software_for(spec.gpu, this_host())
    effective = effective_recompute(spec, implementation, software)
    return RunRecord(
        run_id=run.run_id,
        status=status,
        spec=spec,
        sources=run.sources,
        fingerprint=spec.fingerprint,
        effective=effective,
        ranks=ranks,
        nodes=collected.nodes,
        failure=failure,
        suspect=suspicions(spec, effective, collected, ranks),
        notes=(*run.notes, f"Slurm job {submitted.job_id} committed no record of this run", *note, *collected.notes),
        no_prediction="the job ended before the run was committed",
        provenance=_provenance(job, submitted, ranks, collected.nodes),
    )


def slurm_failure(job: JobRecord, state: TaskState) -> str:
    """Why the job ended, in Slurm's words, as the ``failure`` of its run says it."""
    if state.kind == "purged":
        return "Slurm: UNKNOWN: it knows the job no more, and the run left no record"
    word = state.slurm
    if state.kind == "launch_failed" and "LAUNCH" not in word:
        word = "LAUNCH_FAILED"
    after = f" after {job.slurm.time_limit_minutes} min" if word == "TIMEOUT" else ""
    detail = f" {state.detail}" if state.detail else ""
    code = f"exit code {state.exit_code}" if state.kind == "failed" and state.exit_code not in ("", "0:0") else ""
    told = ", ".join(part for part in (state.reason if state.kind != "timeout" else "", code) if part)
    where = f" on {state.nodes}" if state.nodes and state.kind in SLURM_ENDED_IT else ""
    lost = ", but the run left no record" if state.kind == "finished" else ""
    again = f"REQUEUED {state.restarts} time{'s' if state.restarts > 1 else ''}, then " if state.restarts else ""
    return f"Slurm: {again}{word}{after}{detail}{f' ({told})' if told else ''}{where}{lost}"


def _ending(
    job: JobRecord, submitted: SubmittedRecord, state: TaskState, ranks: tuple[RankRecord, ...], why: str
) -> tuple[Status, str, tuple[str, ...]]:
    """Status, failure and notes. Slurm's word counts where Slurm ended the job; else the ranks' where they left one."""
    reason = why or slurm_failure(job, state)
    # Slurm's state does not say so where the step, not the script, ran out of the host's memory: the job's log does.
    is_own_end = state.kind in ("failed", "finished") and not why
    if is_own_end and any(_HOST_MEMORY.search(text) for text in log_ends(job, state)):
        state_word = f"{state.slurm} to Slurm; its log tells of the kernel's kill"
        return "failed", f"Slurm: OUT_OF_MEMORY of a node's host memory ({state_word})", ()
    said, told = status_of(LaunchOutcome(status="failed", reason=reason), ranks)
    if why or state.kind in SLURM_ENDED_IT:
        also = (f"what the ranks left: {told}",) if told and told != reason else ()
        return ("interrupted" if state.kind == "cancelled" and not why else "failed"), reason, also
    if told and told != reason:
        return said, told, (reason,)
    printed = before_python(job, submitted.job_id, state)
    return said, f"{reason}: {printed}" if printed else reason, ()


def _provenance(
    job: JobRecord, submitted: SubmittedRecord, ranks: tuple[RankRecord, ...], nodes: tuple[NodeSample, ...]
) -> Provenance:
    """What is known from here: of the nodes, what their ranks left; the time runs from submission."""
    first = next((rank for rank in ranks if rank.device), None)
    finished = datetime.now(UTC)
    waited = finished - datetime.fromisoformat(submitted.submitted_at)
    return Provenance(
        started_at=submitted.submitted_at,
        finished_at=finished.isoformat(timespec="seconds"),
        duration_s=max(0.0, round(waited.total_seconds(), 3)),
        command=job.command,
        mbr_perf=harness.__version__,
        git_commit=git_commit(),
        git_branch=git_branch(),
        container=job.slurm.container_image,
        job_id=submitted.job_id,
        hostname=first.hostname if first else UNKNOWN,
        platform=UNKNOWN,
        processor=UNKNOWN,
        device_name=first.device.name if first and first.device else None,
        driver_version=next((node.driver_version for node in nodes if node.driver_version), None),
        versions=first.versions if first else {},
    )


_TAIL_BYTES = 1 << 16
_NUM_LINES, _LINE_CHARS = 3, 200
# Colours and cursor movements of what ranks print, and other characters that steer a terminal.
_STEERING = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f]")
# What follows from the first error of a step, on every node.
_CONSEQUENCE = re.compile(r"srun: (Job step aborted|Terminating|Waiting|error: .*(Exited with exit code|Terminated))")


def without_steering(text: str) -> str:
    """Text from a log, fit for a terminal and a record."""
    return _STEERING.sub("", text.replace("\r\n", "\n"))


def log_ends(job: JobRecord, state: TaskState) -> Iterator[str]:
    """The last 64 KiB of every log of these tasks."""
    tasks = {f"_{task}.out" for task in state.tasks}
    for log in sorted((Path(job.job_dir) / LOGS).glob("slurm-*.out")):
        if job.num_tasks > 1 and not any(log.name.endswith(end) for end in tasks):
            continue
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            yield stream.read().decode(errors="replace")


def before_python(job: JobRecord, job_id: str, state: TaskState) -> str:
    """What a job printed that ended before its first node wrote down that it starts: its last three lines, cut to 200.

    Empty where a node did start, or nothing was printed.
    """
    if any(
        read_document(path, JobAttempt).task in state.tasks for path in (Path(job.job_dir) / ATTEMPTS).glob("*.json")
    ):
        return ""
    lines = [line.strip() for text in log_ends(job, state) for line in without_steering(text).splitlines()]
    said = [line for line in lines if line and not _CONSEQUENCE.match(line)]
    if not said:
        return ""
    ends = " | ".join(redact(line)[:_LINE_CHARS] for line in said[-_NUM_LINES:])
    return f"mbr-perf did not start on the nodes; the job's log ends: {ends} (mbr-perf jobs logs {job_id})"
