"""Rounds of a batch on a cluster: submits one job per entry with all its runs, waits, and collects."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic

from harness.batch.batch import Batch, DueRun, Entry
from harness.batch.launches import fresh_folder, unstarted_record
from harness.batch.nodes import NODE_FILE
from harness.cluster.collecting import drop_unstarted, runs_of
from harness.cluster.controller import Controller, NotSubmittedError
from harness.cluster.following import Watched, wait_for, watched
from harness.cluster.showing import JobDisplay
from harness.cluster.submission import JobRequest, controller_of, found_again, prepare, submit
from harness.errors import BadRequestError, HarnessError, RunFailedError
from harness.launch.environment import Host
from harness.launch.jobs import cluster_job
from harness.records.folders import new_folder
from harness.records.job import (
    JOBS,
    LOGS,
    JobOptions,
    JobRecord,
    attempts_of,
    job_dirs,
    read_job,
    read_submitted,
)
from harness.records.store import write_record
from harness.show.terminal import narrate
from harness.units import command_text, grouped

_CANCEL_PATIENCE_S = 60.0


@dataclass(frozen=True)
class JobPerEntry(Generic[Entry]):
    """Does rounds on a cluster. ``results``: the absolute folder of jobs.

    It waits for jobs of this batch that still run, e.g. after the process that submitted them was killed, and does not
    submit them again. A signal cancels the jobs; a resumed batch submits them anew. If someone else cancels the job of
    an entry, or the cluster does not report whether the job is queued, the entry stays due and this process does not
    start it. The folder of its runs identifies an entry.
    """

    batch: Batch[Entry]
    options: JobOptions
    results: Path
    display: JobDisplay
    _left_alone: set[Path] = field(default_factory=set)

    def run(self, due: Sequence[DueRun[Entry]]) -> int | None:
        """Submit all entries at once. A signal ends the round."""
        controller, watching = controller_of(self.options, self.batch.host.shell), list[Watched]()
        at_work = self._jobs_at_work(controller)
        for of_entry in grouped((run.entry.name, run) for run in due).values():
            folder = self._folder(of_entry[0])
            if folder in self._left_alone:
                continue
            job_dir = at_work.get(folder) or self._submitted(of_entry, controller, is_first=not watching)
            if job_dir is not None:
                watching.append(watched(job_dir))
        waited = wait_for(watching, controller, self.display)
        if waited.signal is not None:
            self._cancel(watching, controller)
            self.batch.interrupted(f"signal {waited.signal}; its jobs were cancelled")
        # The later runs of a job count once they are committed, because the job decides whether they start.
        done = {run.run_dir for watch in watching for run, _ in runs_of(watch.job).committed}
        for item in due:
            if str(self.batch.planned(item).run_dir) in done:
                self.batch.starts(item)
        if waited.signal is None:
            self._note_cancelled(due, watching)
        return waited.signal

    def _folder(self, due: DueRun[Entry]) -> Path:
        return self.batch.planned(due).run_dir.parent

    def _submitted(self, due: Sequence[DueRun[Entry]], controller: Controller, *, is_first: bool) -> Path | None:
        """Return the job's folder; None if there is no job. BadRequestError if all jobs would be refused."""
        for run in due:
            fresh_folder(self.batch.planned(run).run_dir)
        asked = entry_job(self.batch, due, self.options, self.results)
        if due[0].purpose == "confirm" and (nodes := self._nodes_of(self._folder(due[0]))):
            asked = elsewhere(asked, nodes, controller, self.batch.host)
        record = asked.record(new_folder(self.results / JOBS, asked.label, (LOGS,)))
        self.batch.starts(due[0])
        try:
            submitted = submit(prepare(record, self.batch.host), controller)
        except (BadRequestError, NotSubmittedError) as error:
            is_shared = isinstance(error, BadRequestError) and controller.wrong_option.search(error.message)
            if is_first and is_shared:
                drop_unstarted(record.runs)
                raise
            self._unstarted(record, error)
            return None
        except RunFailedError as error:
            self._leave_alone(due[0], str(error))
            return None
        narrate(f"job {submitted.job_id} submitted: {record.job_dir}")
        return Path(record.job_dir)

    def _nodes_of(self, folder: Path) -> str:
        """Return the nodes of the entry's jobs until now: as Slurm lists them, or each by its name in Kubernetes."""
        found = {path.read_text().strip() for path in folder.glob(f"*/{NODE_FILE.format('*')}")}
        for job_dir, _, entry in self._jobs():
            if entry == folder:
                found |= {attempt.nodes for attempt in attempts_of(job_dir)}
        return ",".join(sorted(found))

    def _jobs(self) -> Iterator[tuple[Path, JobRecord, Path]]:
        """Yield each job of this batch: its folder, its record, and the folder of its entry."""
        for job_dir in job_dirs(self.results):
            job = None
            with suppress(BadRequestError):  # another command reports unreadable jobs
                job = read_job(job_dir)
            if job and (job.what, job.subject) == (self.batch.command, str(self.batch.folder)):
                yield job_dir, job, Path(job.runs[0].run_dir).parent

    def _leave_alone(self, due: DueRun[Entry], why: str) -> None:
        self._left_alone.add(self._folder(due))
        narrate(f"{due.entry.name}: {why}")

    def _unstarted(self, job: JobRecord, error: HarnessError) -> None:
        run = job.runs[0]
        write_record(Path(run.run_dir), unstarted_record(run, error.message, self.batch.host))
        drop_unstarted(job.runs[1:])
        narrate(f"{run.run_id}: {error.message}")

    def _jobs_at_work(self, controller: Controller) -> dict[Path, Path]:
        found = dict[Path, Path | None]()
        for job_dir, job, folder in self._jobs():
            if read_submitted(job_dir) or self._taken_up(job, folder, controller):
                found[folder] = job_dir if runs_of(job).due else None
        return {folder: job_dir for folder, job_dir in found.items() if job_dir is not None}

    def _taken_up(self, job: JobRecord, folder: Path, controller: Controller) -> bool:
        """Return whether the cluster accepted the job unconfirmed. Leaves the entry alone if it does not answer now."""
        if not job.script_path.exists() or runs_of(job).due is None:
            return False
        try:
            return found_again(cluster_job(job, self.batch.host), controller) is not None
        except RunFailedError as error:
            self._left_alone.add(folder)
            narrate(f"{folder.name}: {error}")
            return False

    def _cancel(self, watching: Sequence[Watched], controller: Controller) -> None:
        still_open = [watch for watch in watching if watch.is_open]
        for watch in still_open:
            controller.cancel(watch.submitted)
            watch.asked_s = None  # ask again at once
        deadline = time.monotonic() + _CANCEL_PATIENCE_S
        while still_open and time.monotonic() < deadline:
            wait_for(still_open, controller, self.display, timeout_s=0.0)
            still_open = [watch for watch in still_open if watch.is_open]
            time.sleep(0.5)

    def _note_cancelled(self, due: Sequence[DueRun[Entry]], watching: Sequence[Watched]) -> None:
        """Note jobs that someone cancelled from outside; this process does not start them again."""
        ended = {
            run.run_dir: watch.submitted.job_id
            for watch in watching
            for run, record in runs_of(watch.job).committed
            if record.status == "interrupted"
        }
        for item in due:
            if job_id := ended.get(str(self.batch.planned(item).run_dir)):
                reason = f"{self.options.cluster}: CANCELLED by hand (job {job_id})"
                self.batch.cancelled(item, reason)
                again = command_text(self.batch.command, "--resume", self.batch.folder)
                self._leave_alone(item, f"{reason}; run it again with {again}")


def entry_job(batch: Batch[Entry], due: Sequence[DueRun[Entry]], options: JobOptions, results: Path) -> JobRequest:
    """One job for the runs of one entry, one after the other."""
    entry = due[0].entry
    return JobRequest(
        what=batch.command,
        subject=batch.folder,
        label=entry.name,
        specs=(entry.spec,),
        runs=tuple(batch.job_run(run) for run in due),
        launch=batch.planned(due[0]).launch.model_copy(update={"nnodes": entry.spec.num_nodes}),
        options=options,
        results=results,
    )


def elsewhere(asked: JobRequest, nodes: str, controller: Controller, host: Host) -> JobRequest:
    """Return the job without ``nodes``, which cannot confirm what they caused; with them if there are no others."""
    without = replace(asked, options=asked.options.model_copy(update={"exclude": nodes}))
    is_possible = controller.tested(without.checked(host)).code == 0
    where = "other nodes than" if asked.options.serves_nodes else "other nodes, if any are free, than"
    narrate(f"{asked.label}: confirmed on {where if is_possible else 'the same nodes:'} {nodes}")
    return without if is_possible else asked
