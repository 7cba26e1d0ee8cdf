"""Rounds of a night on a cluster: one Slurm job per case with all its runs, submitted at once, waited for, collected."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import BadRequestError, HarnessError, RunFailedError
from harness.launch.environment import Host
from harness.launch.slurm.commands import NotSubmittedError, Slurm, names_wrong_option
from harness.launch.slurm.job import SlurmJob, slurm_job
from harness.launch.slurm.state import job_state
from harness.records.job import SCRIPT, JobRecord, SlurmOptions
from harness.records.jobs import job_dirs, new_job_dir, read_job, read_submitted
from harness.records.night import NightPlan
from harness.records.nights import NightCase, NightData, run_dir_of
from harness.records.run import RunRecord
from harness.records.store import write_record
from harness.runner.fresh_folder import fresh_folder
from harness.runner.jobs.following import Watched, wait_for, watched
from harness.runner.jobs.runs import committed_runs, drop_unstarted, task_runs
from harness.runner.jobs.showing import JobDisplay
from harness.runner.jobs.submission import Origin, found_again, prepare, require_submittable, submit
from harness.runner.machine import software_for
from harness.runner.night.due import due_round
from harness.runner.night.launches import job_run
from harness.runner.night.rounds import DueRun, NightAtWork, note_cancelled, note_interrupted, note_started
from harness.runner.slurm.run import job_name, num_nodes
from harness.runner.unstarted import unstarted_record

_CANCEL_PATIENCE_S = 60.0


@dataclass(frozen=True)
class SlurmRounds:
    """A `RoundRunner`. ``results``: where jobs are kept, absolute.

    Jobs of this night that are still at work, after a kill of the process that waited for them, are waited for and not
    submitted again. A signal cancels the jobs: a night that is resumed submits them anew. A case whose job somebody else
    cancels, or of which Slurm does not say whether its job is queued, stays due and is not submitted again by this process.
    """

    night: NightAtWork
    options: SlurmOptions
    results: Path
    display: JobDisplay
    _noted: set[tuple[str, int]] = field(default_factory=set)
    _left_alone: set[str] = field(default_factory=set)

    def run(self, due: Sequence[DueRun]) -> int | None:
        """All cases at once; a signal ends the round."""
        controller, watching = Slurm(self.night.host.shell), list[Watched]()
        at_work = self._jobs_at_work()
        was_over = {name for name, folder in at_work.items() if _is_over(folder, controller)}
        for name in dict.fromkeys(one.case.name for one in due if one.case.name not in self._left_alone):
            of_case = [one for one in due if one.case.name == name]
            job_dir = at_work.get(name) or self._submitted(of_case, controller, is_first=not watching)
            if job_dir is not None:
                watching.append(watched(job_dir))
        waited = wait_for(watching, controller, self.display)
        if waited.signal is not None:
            self._cancel(watching, controller)
            note_interrupted(self.night.night_dir, f"signal {waited.signal}; its jobs were cancelled")
        self._note_committed(due, watching)
        if waited.signal is None:
            self._note_cancelled(due, watching, was_over)
        return waited.signal

    def _submitted(self, due: Sequence[DueRun], controller: Slurm, *, is_first: bool) -> Path | None:
        """The folder of the job; None where Slurm refuses it, is not reached, or does not say whether it is queued.

        The first two are then the record of its first run. BadRequestError where the first job of all is refused for a name
        that all of them give.
        """
        for one in due:
            fresh_folder(run_dir_of(self.night.night_dir, one.case.name, one.number))
        job_dir = new_job_dir(self.results, due[0].case.name)
        record = case_job(self.night, due, self.options, job_dir, self.results)
        self._note(due[0])
        try:
            submitted = submit(prepare(record, self.night.host), controller)
        except BadRequestError as error:
            if is_first and names_wrong_option(error.message):
                drop_unstarted(record.runs)
                raise
            self._unstarted(record, error)
            return None
        except NotSubmittedError as error:
            self._unstarted(record, error)
            return None
        except RunFailedError as error:
            self._left_alone.add(due[0].case.name)
            self.display.says(f"{due[0].case.name}: {error}")
            return None
        self.display.submitted(record, submitted)
        return job_dir

    def _unstarted(self, job: JobRecord, error: HarnessError) -> None:
        run, host = job.runs[0], self.night.host
        software, _ = software_for(run.spec.gpu, host)
        write_record(Path(run.run_dir), unstarted_record(run, error.message, host=host, software=software))
        drop_unstarted(job.runs[1:])
        self.display.says(f"{run.run_id}: {error}")

    def _jobs_at_work(self) -> dict[str, Path]:
        """By case, the newest job of this night that was submitted and has a run that nobody committed."""
        found = {}
        for folder in job_dirs(self.results):
            job = read_job(folder)
            is_ours = job.what == "nightly" and job.subject == str(self.night.night_dir)
            name = Path(job.runs[0].run_dir).parent.name if is_ours else ""
            if is_ours and (read_submitted(folder) or self._taken_up(job, name)):
                is_open = any(task.due is not None for task in task_runs(job))
                found[name] = folder if is_open else None
        return {name: folder for name, folder in found.items() if folder is not None}

    def _taken_up(self, job: JobRecord, name: str) -> bool:
        """Whether Slurm has a job that it took without saying so; the case is left alone where it does not answer now either."""
        if not (Path(job.job_dir) / SCRIPT).exists() or all(one.due is None for one in task_runs(job)):
            return False
        try:
            return found_again(slurm_job(job, self.night.host), Slurm(self.night.host.shell)) is not None
        except RunFailedError as error:
            self._left_alone.add(name)
            self.display.says(f"{name}: {error}")
            return False

    def _cancel(self, watching: Sequence[Watched], controller: Slurm) -> None:
        """End the jobs and collect what they leave; the wait for that is bounded."""
        open_jobs = [one for one in watching if _is_open(one)]
        for one in open_jobs:
            controller.cancel(one.submitted)
            one.asked_s = None  # ask anew at once
        deadline = time.monotonic() + _CANCEL_PATIENCE_S
        while open_jobs and time.monotonic() < deadline:
            wait_for(open_jobs, controller, self.display, timeout_s=0.0)
            open_jobs = [one for one in open_jobs if _is_open(one)]
            time.sleep(0.5)

    def _note_committed(self, due: Sequence[DueRun], watching: Sequence[Watched]) -> None:
        """Runs after the first of a job are noted once they are there: whether they start is the job's to decide."""
        done = {run.run_dir for one in watching for run, _ in committed_runs(one.job)}
        for one in due:
            if str(run_dir_of(self.night.night_dir, one.case.name, one.number)) in done:
                self._note(one)

    def _note_cancelled(self, due: Sequence[DueRun], watching: Sequence[Watched], was_over: set[str]) -> None:
        """Nobody here ended these jobs: whoever did wants them ended, so that this process does not start them again.

        ``was_over``: cases whose job had ended before this process came, which was started to run them again.
        """
        ended = {
            run.run_dir: (one, record)
            for one in watching
            for run, record in committed_runs(one.job)
            if record.status == "interrupted"
        }
        for due_run in due:
            name, folder = due_run.case.name, str(run_dir_of(self.night.night_dir, due_run.case.name, due_run.number))
            if folder in ended:
                reason = _by_hand(*ended[folder])
                note_cancelled(self.night.night_dir, due_run, reason)
                if name not in was_over:
                    self._left_alone.add(name)
                    again = f"mbr-perf nightly --resume {self.night.night_dir} runs it again"
                    self.display.says(f"{name}: {reason}; {again}")

    def _note(self, due: DueRun) -> None:
        if (due.case.name, due.number) not in self._noted:
            note_started(self.night.night_dir, due)
            self._noted.add((due.case.name, due.number))


def require_submittable_night(plan: NightPlan, options: SlurmOptions, host: Host, results: Path) -> None:
    """BadRequestError for what no batch file can hold, or names what Slurm does not know, before anything is written."""
    jobs = night_jobs(plan, options, host, results)
    if jobs:
        Slurm(host.shell).require_options(jobs[0])


def night_jobs(plan: NightPlan, options: SlurmOptions, host: Host, results: Path) -> tuple[SlurmJob, ...]:
    """The jobs of the first round, one for each case that can run. BadRequestError for what no batch file can hold."""
    night = NightAtWork(results / "nights" / "NIGHT", plan, host)
    begun = NightData(night.night_dir, plan, tuple(NightCase(case, ()) for case in plan.cases), ())
    due = due_round(begun, lambda _: "")
    return tuple(
        require_submittable(case_job(night, of_case, options, results / "jobs" / "JOB", results), host)
        for name in dict.fromkeys(one.case.name for one in due)
        if (of_case := [one for one in due if one.case.name == name])
    )


def case_job(
    night: NightAtWork, due: Sequence[DueRun], options: SlurmOptions, job_dir: Path, results: Path
) -> JobRecord:
    """One job for the runs of one case, one after the other."""
    case, origin = due[0].case, Origin.here()
    assert case.spec is not None  # it is to run
    launch = night.plan.launch
    if case.timeout_s is not None:
        launch = launch.model_copy(update={"timeout_s": case.timeout_s})
    return JobRecord(
        job_dir=str(job_dir),
        name=job_name(case.name),
        what="nightly",
        subject=str(night.night_dir),
        nnodes=num_nodes(case.spec),
        gpus_per_node=0 if case.spec.gpu_type.is_cpu else min(case.spec.num_gpus, case.spec.gpus_per_node),
        runs=tuple(job_run(night, one) for one in due),
        launch=launch.model_copy(update={"nnodes": num_nodes(case.spec)}),
        results_dir=str(results),
        slurm=options,
        command=origin.command,
        created_at=origin.created_at,
        mbr_perf=origin.mbr_perf,
    )


def _by_hand(one: Watched, record: RunRecord) -> str:
    """Who cancelled it Slurm tells where it ended a waiting job; ranks that a signal ended only say that."""
    told = record.failure or ""
    detail = told.removeprefix("Slurm: CANCELLED") if told.startswith("Slurm: CANCELLED") else ""
    return f"Slurm: CANCELLED by hand (job {one.submitted.job_id}{f':{detail}' if detail else ''})"


def _is_over(job_dir: Path, controller: Slurm) -> bool:
    return all(state.has_ended for state in job_state(controller, watched(job_dir).submitted))


def _is_open(one: Watched) -> bool:
    return any(task.due is not None for task in task_runs(one.job))
