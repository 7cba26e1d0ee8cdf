"""Waiting for jobs: the queue, then the steps of their runs, until each run is committed or its job has ended."""

import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from harness.cluster.collecting import begun_again, collect_ended, drop_unstarted, runs_of
from harness.cluster.controller import Controller
from harness.cluster.showing import JobDisplay
from harness.cluster.state import JobState
from harness.errors import BadRequestError, ExitCode, RunFailedError
from harness.judge.gate import status_exit_code
from harness.launch.crew import interruption
from harness.launch.heartbeats import Heartbeats
from harness.records.disk import require_kept
from harness.records.job import LOGS, JobRecord, SubmittedRecord, read_job, read_submitted
from harness.records.store import write_atomically
from harness.show.terminal import narrate
from harness.units import command_text

LOOK_S = 0.5
_ASK_S = (1.0, 5.0, 15.0)  # ask the controller every second at first, then less often
_PATIENT_AFTER_S = (20.0, 600.0)
SETTLE_S = 5.0  # a node's last record may become visible here after its job has ended
_NEVER_S = 60.0  # how long the cluster may report that a job can never start
_UNREACHABLE_S = 1800.0  # beyond the job's time limit


@dataclass
class Watched:
    """One job to wait for. ``queued_before_s``: before the wait. Other times: when something was first seen."""

    job: JobRecord
    submitted: SubmittedRecord
    queued_before_s: float = 0.0
    began_s: float | None = None
    state: JobState | None = None
    shown: str = ""
    asked_s: float | None = None
    ended_s: float | None = None
    stuck_s: float | None = None
    silent_s: float | None = None
    heartbeats: dict[str, Heartbeats] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        return runs_of(self.job).due is not None


@dataclass(frozen=True)
class Waited:
    """How the wait ended: with every job collected, by a signal, or by a timeout."""

    is_done: bool
    signal: int | None = None


def watched(job_dir: Path) -> Watched:
    """Return the job to wait for. BadRequestError if it was not submitted."""
    submitted = read_submitted(job_dir)
    if submitted is None:
        raise BadRequestError(f"{job_dir}: the job was not submitted", remedy=command_text("jobs", "submit", job_dir))
    waited = datetime.now(UTC) - datetime.fromisoformat(submitted.submitted_at)
    return Watched(read_job(job_dir), submitted, max(0.0, waited.total_seconds()))


def wait_for(
    jobs: Sequence[Watched],
    controller: Controller,
    display: JobDisplay,
    *,
    timeout_s: float | None = None,
) -> Waited:
    """Wait until every job is collected; a signal ends the wait. RunFailedError if the cluster stays unreachable."""
    began, left = time.monotonic(), list(jobs)
    with closing(display), interruption() as caught:
        while left:
            left = [watch for watch in left if not _is_done(watch, controller, display)]
            if caught.signal is not None:
                return Waited(is_done=False, signal=caught.signal)
            if timeout_s is not None and time.monotonic() - began > timeout_s:
                return Waited(is_done=not left)
            if left:
                time.sleep(LOOK_S)
    return Waited(is_done=True)


def wait_and_judge(
    job_dir: Path,
    controller: Controller,
    display: JobDisplay,
    judge: Callable[[JobRecord], ExitCode],
    timeout_s: float | None = None,
) -> ExitCode:
    """Wait for one job and judge its runs, as the command that submitted it would."""
    watch = watched(job_dir)
    waited = wait_for([watch], controller, display, timeout_s=timeout_s)
    if waited.is_done:
        return judge(watch.job)
    display.left_alone(watch.job, watch.submitted, waited.signal)
    return ExitCode.INCONCLUSIVE if waited.signal is None else status_exit_code("interrupted", waited.signal)


def _is_done(watch: Watched, controller: Controller, display: JobDisplay) -> bool:
    """Return whether the job is collected. Records of its runs count more than the cluster's state."""
    now = time.monotonic()
    watch.began_s = now if watch.began_s is None else watch.began_s
    then = f"mbr-perf waits no longer; `{shlex.join(controller.cancelling(watch.submitted))}` ends the job"
    require_kept(Path(watch.job.job_dir), then=then)
    runs = runs_of(watch.job)
    if runs.are_settled:
        drop_unstarted(runs.dropped)
        _keep_logs(watch, controller)
        return True
    if runs.due is not None:
        require_kept(Path(runs.due.run_dir), then=then)
        run = runs.due
        if run.run_id not in watch.heartbeats:
            ranks, num_steps = range(run.spec.num_gpus), run.spec.measure.max_steps
            watch.heartbeats[run.run_id] = Heartbeats(Path(run.run_dir), ranks, num_steps, now)
        if (beats := watch.heartbeats[run.run_id]).read(now):
            display.step(run.run_id, beats.progress())
    interval_s = _ASK_S[sum(now - watch.began_s > limit for limit in _PATIENT_AFTER_S)]
    if watch.state is None or watch.asked_s is None or now - watch.asked_s > interval_s:
        watch.state = _ask(watch, controller)
    if watch.state.has_ended:
        return _has_settled(watch, controller, watch.state, now)
    return _is_given_up(watch, controller, watch.state, now)


def _has_settled(watch: Watched, controller: Controller, state: JobState, now: float) -> bool:
    watch.ended_s = now if watch.ended_s is None else watch.ended_s
    if now - watch.ended_s < SETTLE_S and watch.job.runs:
        return False
    _keep_logs(watch, controller)
    collect_ended(watch.job, watch.submitted, state)
    if not watch.job.runs and (why := begun_again(watch.job, state)):  # a sweep resumes what is missing
        narrate(f"job {watch.submitted.job_id}: {why}")
    return True


def _keep_logs(watch: Watched, controller: Controller) -> None:
    for name, text in controller.logs(watch.submitted):
        write_atomically(Path(watch.job.job_dir) / LOGS / f"{name}.out", text)


def _ask(watch: Watched, controller: Controller) -> JobState:
    state = controller.state(watch.submitted)
    now = watch.asked_s = time.monotonic()
    if state.text != watch.shown:
        narrate(f"job {watch.submitted.job_id}: {state.text}")
        watch.shown = state.text
    watch.stuck_s = (watch.stuck_s or now) if state.never_starts else None
    watch.silent_s = (watch.silent_s or now) if state.kind == "unreachable" else None
    return state


def _is_given_up(watch: Watched, controller: Controller, state: JobState, now: float) -> bool:
    """Cancel a job that cannot start or did not start in time. Its runs are recorded as failed for that reason."""
    why = _reason_to_give_up(watch, state, now)
    if not why:
        longest_s = _UNREACHABLE_S + watch.job.options.time_limit_minutes * 60
        if watch.silent_s is not None and now - watch.silent_s >= longest_s:
            again = command_text("jobs", "wait", watch.job.job_dir)
            raise RunFailedError(
                f"job {watch.submitted.job_id}: {state.text}; it must have ended by now, but wrote no record",
                remedy=f"when {watch.job.options.cluster} answers: {again}",
            )
        return False
    controller.cancel(watch.submitted)
    watch.state = JobState(kind="cancelled", state="CANCELLED")
    collect_ended(watch.job, watch.submitted, watch.state, why)
    return True


def _reason_to_give_up(watch: Watched, state: JobState, now: float) -> str:
    """Say why to give up, else empty. Empty too if the job has started."""
    if state.kind != "queued":
        return ""
    limit = watch.job.options.pending_timeout_minutes
    waited_s = watch.queued_before_s + now - (watch.began_s or now)
    is_stuck = watch.stuck_s is not None and now - watch.stuck_s > _NEVER_S
    if not is_stuck and (limit is None or waited_s <= limit * 60):
        return ""
    after = f"{waited_s / 60:.0f} min: {state.reason or 'no reason given'}"
    return f"{watch.job.options.cluster}: never started within {after}; cancelled by mbr-perf"
