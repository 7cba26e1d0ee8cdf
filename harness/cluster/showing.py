"""Shows a job: its submission, its state, its steps, and what to do next. The report goes to stdout, messages to stderr."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from harness.launch.heartbeats import Progress
from harness.launch.slurm_job import SlurmJob
from harness.measure.experiment import Display
from harness.measure.prediction import RunPrediction
from harness.measure.understanding import Understood
from harness.records.job import JobRecord, SubmittedRecord
from harness.records.run import RunRecord
from harness.show import json
from harness.show.page import Block, Line
from harness.show.progress import PlainLines, Show, step_progress
from harness.show.terminal import narrate, narration, show_blocks


@dataclass
class JobDisplay:
    """Where the report and the messages go. ``run`` shows what also applies to runs on this machine."""

    run: Display
    _steps: ExitStack = field(default_factory=ExitStack)
    _shown: str = ""
    _show: Show | None = None
    _lines: dict[str, PlainLines] = field(default_factory=dict)

    @property
    def as_json(self) -> bool:
        """Return whether the answer is one JSON document."""
        return self.run.as_json

    def plan(self, understood: Understood, prediction: RunPrediction, job: SlurmJob) -> None:
        """Show a dry run: the batch file and the command that would submit it."""
        self.run.plan(understood, prediction, job)

    def understood(self, understood: Understood) -> None:
        """Before anything is submitted, show the resolved request and every warning."""
        self.run.understood(understood)

    def ignored(self, names: Sequence[str]) -> None:
        """Name the variables of the shell that would change the batch file's options."""
        if names:
            self.narrate(
                f"Note: mbr-perf ignores {', '.join(names)} of your shell. Use the options of mbr-perf instead"
            )

    def narrate(self, line: Block) -> None:
        """Show one message."""
        narrate(line)

    def prepared(self, job: SlurmJob) -> None:
        """Show a job that was written but not submitted."""
        record = job.record
        if self.as_json:
            from harness.measure.document import PreparedDocument

            json.answer(PreparedDocument.of_job(record, script=job.script_path, sbatch=job.sbatch))
        else:
            self._answer([f"prepared {job.script_path}", f"submit it: mbr-perf jobs submit {record.job_dir}"])

    def submitted(self, job: JobRecord, submitted: SubmittedRecord) -> None:
        """Show that the job is in the queue."""
        self.narrate(f"job {submitted.job_id} submitted: {job.job_dir}")

    def detached(self, job: JobRecord, submitted: SubmittedRecord) -> None:
        """Show the ids and the command that collects the job."""
        if self.as_json:
            from harness.measure.document import SubmittedDocument

            json.answer(SubmittedDocument.of_job(job, submitted))
            return
        self._answer([
            f"job {submitted.job_id}: {job.job_dir}",
            *(f"run {run.run_id}" for run in job.runs),
            f"collect and judge it: mbr-perf jobs wait {job.job_dir}",
        ])  # fmt: skip

    def left_alone(self, job: JobRecord, submitted: SubmittedRecord, signal: int | None) -> None:
        """Show that the wait ended before the job."""
        self.close()
        why = "mbr-perf stopped waiting" if signal is not None else "it has not finished yet"
        self.narrate(f"job {submitted.job_id} continues: {why}")
        self.narrate(Line(f"  collect it: mbr-perf jobs wait {job.job_dir}", whole=True))
        self.narrate(Line(f"  cancel it:  mbr-perf jobs cancel {job.job_dir}", whole=True))
        if self.as_json:
            from harness.measure.document import WaitingDocument

            json.answer(WaitingDocument.of_job(job, submitted))

    def step(self, run_id: str, progress: Progress, *, alone: bool) -> None:
        """Show a live bar on a terminal, lines elsewhere. Lines name their run if it is not ``alone``."""
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
        """Show how the runs of a night's case ended, and the command that judges them."""
        statuses = [record.status for record in records]
        if self.as_json:
            from harness.measure.document import CaseJobDocument

            json.answer(CaseJobDocument.of_job(job, statuses=statuses))
        else:
            self._answer([f"runs: {', '.join(statuses)}", f"judge them: mbr-perf nightly --resume {job.subject}"])

    def close(self) -> None:
        """Remove the bar from the terminal."""
        self._steps.close()
        self._shown, self._show = "", None

    @staticmethod
    def _answer(lines: Sequence[str]) -> None:
        show_blocks(*(Line(line, whole=True) for line in lines))
