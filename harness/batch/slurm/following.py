"""Waiting for jobs: the queue, then the steps of their runs, until each run is committed or its job has ended."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from harness.batch.slurm.collecting import collect_ended, drop_unstarted, state_of, task_runs
from harness.batch.slurm.showing import JobDisplay
from harness.errors import BadRequestError, ExitCode, RunFailedError
from harness.judging.gate import status_exit_code
from harness.launch.crew import interruption
from harness.launch.heartbeats import Heartbeats
from harness.launch.slurm.commands import Slurm
from harness.launch.slurm.state import TaskState, job_state
from harness.records.job import JobRecord, JobRun, SubmittedRecord, read_job, read_submitted

LOOK_S = 0.5
_ASK_S = (1.0, 5.0, 15.0)  # the controller is asked ever more seldom: every second at first
_PATIENT_AFTER_S = (20.0, 600.0)
SETTLE_S = 5.0  # a record that a node wrote last may be seen here later than the end of its job
_NEVER_S = 60.0  # so long a job may say that it can never start
_UNREACHABLE_S = 1800.0  # beyond the job's time limit

Clock = Callable[[], float]
Sleep = Callable[[float], None]


@dataclass
class Watched:
    """One job that is waited for. ``states`` are the latest ones; ``queued_before_s``: from submission until this waiting.

    The other times are those of the clock at which something was first seen.
    """

    job: JobRecord
    submitted: SubmittedRecord
    queued_before_s: float = 0.0
    began_s: float | None = None
    states: tuple[TaskState, ...] = ()
    said: str = ""
    asked_s: float | None = None
    ended_s: float | None = None
    stuck_s: float | None = None
    silent_s: float | None = None
    heartbeats: dict[str, Heartbeats] = field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        """Whether Slurm says so of every task."""
        return bool(self.states) and all(state.has_ended for state in self.states)


@dataclass(frozen=True)
class Waited:
    """How the waiting ended: every job is collected, or a signal or the patience of whoever waits ended it."""

    is_done: bool
    signal: int | None = None


def watched(job_dir: Path) -> Watched:
    """A job to wait for. BadRequestError where it was not submitted."""
    submitted = read_submitted(job_dir)
    if submitted is None:
        raise BadRequestError(f"{job_dir}: was not submitted", remedy=f"mbr-perf jobs submit {job_dir}")
    waited = datetime.now(UTC) - datetime.fromisoformat(submitted.submitted_at)
    return Watched(read_job(job_dir), submitted, max(0.0, waited.total_seconds()))


def wait_for(
    jobs: Sequence[Watched],
    slurm: Slurm,
    display: JobDisplay,
    *,
    timeout_s: float | None = None,
    clock: Clock = time.monotonic,
    sleep: Sleep = time.sleep,
) -> Waited:
    """Until every job is collected: its runs committed by it, or by this process when it has ended without.

    A signal ends the waiting, not the jobs. RunFailedError where Slurm cannot be asked long after a job must have ended.
    """
    began, left = clock(), list(jobs)
    look = _Look(slurm, display, clock, alone=len(jobs) == 1)
    with closing(display), interruption() as caught:
        while left:
            left = [one for one in left if not look.is_done(one)]
            if caught.signal is not None:
                return Waited(is_done=False, signal=int(caught.signal))
            if timeout_s is not None and clock() - began > timeout_s:
                return Waited(is_done=not left)
            if left:
                sleep(LOOK_S)
    return Waited(is_done=True)


def wait_and_judge(
    job_dir: Path,
    slurm: Slurm,
    display: JobDisplay,
    judge: Callable[[JobRecord], ExitCode],
    timeout_s: float | None = None,
) -> ExitCode:
    """Wait for one job and judge what it left, as the command that submitted it would have."""
    one = watched(job_dir)
    waited = wait_for([one], slurm, display, timeout_s=timeout_s)
    if waited.is_done:
        return judge(one.job)
    display.left_alone(one.job, one.submitted, waited.signal)
    return ExitCode.INCONCLUSIVE if waited.signal is None else status_exit_code("interrupted", waited.signal)


class _Look:
    """One look at jobs after another, at the time that ``clock`` (seconds, monotonic) says."""

    def __init__(self, slurm: Slurm, display: JobDisplay, clock: Clock, *, alone: bool) -> None:
        self._slurm, self._display, self._clock, self._alone = slurm, display, clock, alone

    def is_done(self, one: Watched) -> bool:
        """Whether the job is collected. What its runs committed counts before all that Slurm says."""
        now = self._clock()
        one.began_s = now if one.began_s is None else one.began_s
        tasks = task_runs(one.job)
        if one.job.runs and all(task.due is None for task in tasks):
            for task in tasks:
                drop_unstarted(task.dropped)
            return True
        for task in tasks:
            if task.due is not None:
                self._show_steps(one, task.due, now)
        interval_s = _ASK_S[sum(now - one.began_s > limit for limit in _PATIENT_AFTER_S)]
        if one.asked_s is None or now - one.asked_s > interval_s:
            self._ask(one)
        return self._has_ended(one, now) if one.has_ended else self._is_given_up(one, now)

    def _has_ended(self, one: Watched, now: float) -> bool:
        one.ended_s = now if one.ended_s is None else one.ended_s
        if now - one.ended_s < SETTLE_S and one.job.runs:
            return False
        collect_ended(one.job, one.submitted, one.states)
        return True

    def _ask(self, one: Watched) -> None:
        one.states = job_state(self._slurm, one.submitted)
        now = one.asked_s = self._clock()
        told = "; ".join(dict.fromkeys(state.text for state in one.states))
        if told != one.said:
            self._display.says(f"job {one.submitted.job_id}: {told}")
            one.said = told
        one.stuck_s = (one.stuck_s or now) if any(state.never_starts for state in one.states) else None
        one.silent_s = (one.silent_s or now) if any(state.kind == "unreachable" for state in one.states) else None

    def _show_steps(self, one: Watched, run: JobRun, now: float) -> None:
        """What the ranks of every node say in the folder that they share with this process."""
        spec = run.spec
        if run.run_id not in one.heartbeats:
            ranks = range(spec.num_gpus)
            one.heartbeats[run.run_id] = Heartbeats(Path(run.run_dir), ranks, spec.measure.max_steps, now)
        beats = one.heartbeats[run.run_id]
        if beats.read(now):
            alone = self._alone and one.job.num_tasks == 1
            self._display.step(run.run_id, beats.progress(now), alone=alone)

    def _is_given_up(self, one: Watched, now: float) -> bool:
        """End a job that cannot start, or did not in time; its runs are recorded as failed for that reason."""
        why = _reason_to_give_up(one, now)
        if not why:
            _require_word(one, now)
            return False
        self._slurm.cancel(one.submitted)
        one.states = tuple(TaskState("cancelled", "CANCELLED", tasks=state.tasks) for state in one.states)
        collect_ended(one.job, one.submitted, one.states, why)
        return True


def _reason_to_give_up(one: Watched, now: float) -> str:
    """Empty while there is none; a job of which a part has started has none."""
    if not one.states or not all(state.kind == "queued" for state in one.states):
        return ""
    state = one.states[0]
    reason = state.reason or "no reason given"
    if one.stuck_s is not None and now - one.stuck_s > _NEVER_S and state.restarts:
        return f"Slurm: REQUEUED and held: {reason}; half a run is not gone on with, cancelled by mbr-perf"
    if one.stuck_s is not None and now - one.stuck_s > _NEVER_S:
        return f"Slurm: never started: {reason}; cancelled by mbr-perf"
    limit = one.job.slurm.pending_timeout_minutes
    waited_s = one.queued_before_s + now - (one.began_s or now)
    if limit is not None and waited_s > limit * 60:
        return f"Slurm: never started within {limit} min: {reason}; cancelled by mbr-perf"
    return ""


def _require_word(one: Watched, now: float) -> None:
    if one.silent_s is None or now - one.silent_s < _UNREACHABLE_S + one.job.slurm.time_limit_minutes * 60:
        return
    told = state_of(one.states, 0).text
    raise RunFailedError(
        f"job {one.submitted.job_id}: {told}; it must have ended by now and committed nothing",
        remedy=f"mbr-perf jobs wait {one.job.job_dir} collects it once Slurm answers",
    )
