"""What a person sees of a job: submitted, queued, its steps, how to go on. stdout is the answer, stderr the narration."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from harness.launch.heartbeats import Progress
from harness.launch.slurm.job import SlurmJob
from harness.records.job import JobRecord, SubmittedRecord
from harness.records.run import RunRecord
from harness.run.predicting.prediction import RunPrediction
from harness.run.show import Display
from harness.run.understanding import Understood
from harness.showing import json
from harness.showing.page import Block, Line
from harness.showing.progress import PlainLines, Show, step_progress
from harness.showing.terminal import narrate, narration, show_blocks


@dataclass
class JobDisplay:
    """Where the answer and the narration go; ``run`` shows what is the same for runs that are launched here."""

    run: Display
    _steps: ExitStack = field(default_factory=ExitStack)
    _shown: str = ""
    _show: Show | None = None
    _lines: dict[str, PlainLines] = field(default_factory=dict)

    @property
    def as_json(self) -> bool:
        """Whether the answer is one JSON document."""
        return self.run.as_json

    def plan(self, understood: Understood, foretold: RunPrediction, job: SlurmJob) -> None:
        """The dry run: the batch file that would be submitted, and the command that would do it."""
        self.run.plan(understood, foretold, job)

    def understood(self, understood: Understood) -> None:
        """Before anything is submitted: what was understood, and every warning."""
        self.run.understood(understood)

    def ignored(self, names: Sequence[str]) -> None:
        """Variables of the shell that would change what the batch file says."""
        if names:
            self.says(f"Note: {', '.join(names)} of your shell do not count: the batch file says all; give the options")

    def says(self, line: Block) -> None:
        """One line of narration."""
        narrate(line)

    def prepared(self, job: SlurmJob) -> None:
        """Written, and not submitted."""
        record = job.record
        if self.as_json:
            from harness.run.document import PreparedDocument

            json.answer(PreparedDocument.of_job(record, script=job.script_path, sbatch=job.sbatch))
        else:
            self._answer([f"prepared {job.script_path}", f"submit it: mbr-perf jobs submit {record.job_dir}"])

    def submitted(self, job: JobRecord, submitted: SubmittedRecord) -> None:
        """In the queue."""
        self.says(f"job {submitted.job_id} submitted: {job.job_dir}")

    def detached(self, job: JobRecord, submitted: SubmittedRecord) -> None:
        """The ids, and how to collect."""
        if self.as_json:
            from harness.run.document import SubmittedDocument

            json.answer(SubmittedDocument.of_job(job, submitted))
            return
        self._answer([
            f"job {submitted.job_id}: {job.job_dir}",
            *(f"run {run.run_id}" for run in job.runs),
            f"collect and judge it: mbr-perf jobs wait {job.job_dir}",
        ])  # fmt: skip

    def left_alone(self, job: JobRecord, submitted: SubmittedRecord, signal: int | None) -> None:
        """Waiting has ended and the job has not."""
        self.close()
        why = "no longer waited for" if signal is not None else "not finished yet"
        self.says(f"job {submitted.job_id} is {why}; it goes on")
        self.says(Line(f"  collect it: mbr-perf jobs wait {job.job_dir}", whole=True))
        self.says(Line(f"  cancel it:  mbr-perf jobs cancel {job.job_dir}", whole=True))
        if self.as_json:
            from harness.run.document import WaitingDocument

            json.answer(WaitingDocument.of_job(job, submitted))

    def step(self, run_id: str, progress: Progress, *, alone: bool) -> None:
        """A live bar on a terminal, a line now and then elsewhere; lines that name their run where it is not ``alone``."""
        show = self._bar(run_id, progress) if alone else self._line(run_id, progress)
        show(str(progress.phase or "start"), progress.step, progress.last_step_s, progress.eta_s)

    def _bar(self, run_id: str, progress: Progress) -> Show:
        if run_id != self._shown or self._show is None:
            self.close()
            self._show = self._steps.enter_context(step_progress(narration(), progress.num_steps))
            self._shown = run_id
        return self._show

    def _line(self, run_id: str, progress: Progress) -> Show:
        if run_id not in self._lines:
            self._lines[run_id] = PlainLines(narration(), progress.num_steps, time.monotonic, label=f"{run_id}: ")
        return self._lines[run_id].show

    def of_a_night(self, job: JobRecord, records: Sequence[RunRecord]) -> None:
        """The job of a case of a night has ended: how its runs did, and who judges them."""
        statuses = [record.status for record in records]
        if self.as_json:
            from harness.run.document import CaseJobDocument

            json.answer(CaseJobDocument.of_job(job, statuses=statuses))
        else:
            self._answer([f"runs: {', '.join(statuses)}", f"judge them: mbr-perf nightly --resume {job.subject}"])

    def close(self) -> None:
        """Take the bar off the terminal."""
        self._steps.close()
        self._shown, self._show = "", None

    @staticmethod
    def _answer(lines: Sequence[str]) -> None:
        show_blocks(*(Line(line, whole=True) for line in lines))
