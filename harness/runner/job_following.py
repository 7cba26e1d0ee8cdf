"""Waiting for jobs: the queue, then the steps of their runs, until each run is committed or its job has ended."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from harness.analysis.outcome import status_exit_code
from harness.errors import BadRequestError, ExitCode, RunFailedError
from harness.launch.heartbeats import Heartbeats
from harness.launch.interruption import interruption
from harness.launch.slurm.commands import Slurm
from harness.launch.slurm.state import TaskState, job_state
from harness.records.job import JobRecord, JobRun, SubmittedRecord
from harness.records.jobs import read_job, read_submitted
from harness.runner.experiment import judge
from harness.runner.job_collecting import collect_ended, state_of
from harness.runner.job_runs import committed_runs, drop_unstarted, task_runs
from harness.runner.job_showing import JobDisplay
from harness.runner.launched import Ran
from harness.runner.sweep import gate_of

LOOK_S = 0.5
_ASK_S = (1.0, 5.0, 15.0)  # the controller is asked ever more seldom: every second at first
_PATIENT_AFTER_S = (20.0, 600.0)
SETTLE_S = 5.0  # a record that a node wrote last may be seen here later than the end of its job
_NEVER_S = 60.0  # so long a job may say that it can never start
_UNREACHABLE_S = 1800.0  # beyond the job's time limit

Sleep = Callable[[float], None]


@dataclass
class Watched:
    """One job that is waited for. ``states`` are the latest ones; the clock is monotonic."""

    job: JobRecord
    submitted: SubmittedRecord
    began_s: float
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
    return Watched(read_job(job_dir), submitted, time.monotonic())


def wait_for(
    jobs: Sequence[Watched],
    slurm: Slurm,
    display: JobDisplay,
    *,
    timeout_s: float | None = None,
    sleep: Sleep = time.sleep,
) -> Waited:
    """Until every job is collected: its runs committed by it, or by this process when it has ended without.

    A signal ends the waiting, not the jobs. RunFailedError where Slurm cannot be asked long after a job must have ended.
    """
    began, left = time.monotonic(), list(jobs)
    with closing(display), interruption() as caught:
        while left:
            left = [one for one in left if not _is_done(one, slurm, display, alone=len(jobs) == 1)]
            if caught.signal is not None:
                return Waited(is_done=False, signal=int(caught.signal))
            if timeout_s is not None and time.monotonic() - began > timeout_s:
                return Waited(is_done=not left)
            if left:
                sleep(LOOK_S)
    return Waited(is_done=True)


def wait_and_judge(job_dir: Path, slurm: Slurm, display: JobDisplay, timeout_s: float | None = None) -> ExitCode:
    """Wait for one job and judge its runs, as `mbr-perf run` would have."""
    one = watched(job_dir)
    waited = wait_for([one], slurm, display, timeout_s=timeout_s)
    if not waited.is_done:
        display.left_alone(one.job, one.submitted, waited.signal)
        return ExitCode.INCONCLUSIVE if waited.signal is None else status_exit_code("interrupted", waited.signal)
    return judge_job(one.job, display, one.states)


def judge_job(job: JobRecord, display: JobDisplay, states: tuple[TaskState, ...] = ()) -> ExitCode:
    """The verdict on what the job committed; of a sweep or a night the worst end of its runs, which are judged by theirs."""
    runs = [Ran(record, Path(run.run_dir), None) for run, record in committed_runs(job)]
    if job.what == "run" and runs:
        results = Path(job.results_dir) if job.results_dir else None
        return judge(runs, gate_of(job.gate), results, display.run)
    display.of_more(job, [run.record for run in runs])
    codes = [status_exit_code(run.record.status) for run in runs]
    ended_well = all(state.kind == "finished" for state in states)
    return max([*codes, ExitCode.OK if runs or ended_well else ExitCode.RUN_FAILED])


def _is_done(one: Watched, slurm: Slurm, display: JobDisplay, *, alone: bool) -> bool:
    """One look at a job. What its runs committed counts before all that Slurm says."""
    now = time.monotonic()
    tasks = task_runs(one.job)
    if one.job.runs and all(task.due is None for task in tasks):
        for task in tasks:
            drop_unstarted(task.dropped)
        return True
    for task in tasks:
        if task.due is not None:
            _show_steps(one, task.due, now, display, alone=alone and one.job.num_tasks == 1)
    if one.asked_s is None or now - one.asked_s > _interval_s(now - one.began_s):
        _ask(one, slurm, display)
    if one.has_ended:
        one.ended_s = now if one.ended_s is None else one.ended_s
        if now - one.ended_s >= SETTLE_S or not one.job.runs:
            collect_ended(one.job, one.submitted, one.states)
            return True
        return False
    return _is_given_up(one, slurm, now)


def _interval_s(waiting_s: float) -> float:
    return _ASK_S[sum(waiting_s > limit for limit in _PATIENT_AFTER_S)]


def _ask(one: Watched, slurm: Slurm, display: JobDisplay) -> None:
    one.states = job_state(slurm, one.submitted)
    now = one.asked_s = time.monotonic()
    told = "; ".join(dict.fromkeys(state.text for state in one.states))
    if told != one.said:
        display.says(f"job {one.submitted.job_id}: {told}")
        one.said = told
    one.stuck_s = (one.stuck_s or now) if any(state.never_starts for state in one.states) else None
    one.silent_s = (one.silent_s or now) if any(state.kind == "unreachable" for state in one.states) else None


def _show_steps(one: Watched, run: JobRun, now: float, display: JobDisplay, *, alone: bool) -> None:
    """What the ranks of every node say in the folder that they share with this process."""
    spec = run.spec
    if run.run_id not in one.heartbeats:
        one.heartbeats[run.run_id] = Heartbeats(Path(run.run_dir), range(spec.num_gpus), spec.measure.max_steps, now)
    beats = one.heartbeats[run.run_id]
    if beats.read(now):
        display.step(run.run_id, beats.progress(now), alone=alone)


def _is_given_up(one: Watched, slurm: Slurm, now: float) -> bool:
    """End a job that cannot start, or did not in time; its runs are recorded as failed for that reason."""
    limit = one.job.slurm.pending_timeout_minutes
    waits = bool(one.states) and all(state.kind == "queued" for state in one.states)
    reason = next((state.reason for state in one.states if state.kind == "queued"), "")
    why = ""
    if one.stuck_s is not None and now - one.stuck_s > _NEVER_S and waits:
        why = f"Slurm: never started: {reason}; cancelled by mbr-perf"
    elif limit is not None and waits and now - one.began_s > limit * 60:
        why = f"Slurm: never started within {limit} min: {reason or 'no reason given'}; cancelled by mbr-perf"
    if not why:
        _require_word(one, now)
        return False
    slurm.cancel(one.submitted)
    ended = tuple(TaskState("cancelled", "CANCELLED", tasks=state.tasks) for state in one.states)
    collect_ended(one.job, one.submitted, ended, why)
    one.states = ended
    return True


def _require_word(one: Watched, now: float) -> None:
    if one.silent_s is None or now - one.silent_s < _UNREACHABLE_S + one.job.slurm.time_limit_minutes * 60:
        return
    told = state_of(one.states, 0).text
    raise RunFailedError(
        f"job {one.submitted.job_id}: {told}; it must have ended by now and committed nothing",
        remedy=f"mbr-perf jobs wait {one.job.job_dir} collects it once Slurm answers",
    )
