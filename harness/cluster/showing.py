"""Shows a job: its submission, its steps, and what to do next. The report goes to stdout, messages to stderr."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from harness.launch.cluster_job import ClusterJob
from harness.launch.heartbeats import Progress
from harness.measure.experiment import Display
from harness.records.job import JobRecord, SubmittedRecord
from harness.show import json
from harness.show.page import Line
from harness.show.progress import Show, step_progress
from harness.show.terminal import narrate, narration, show_blocks
from harness.units import command_text


class SubmittedDocument(json.Document):
    """``run`` and ``sweep`` with ``--detach --json``, ``mbr-perf jobs submit --json``, and a wait that ended early."""

    job_dir: str
    job_id: str | None
    run_ids: tuple[str, ...]
    run_dirs: tuple[str, ...]

    @classmethod
    def of_job(cls, job: JobRecord, submitted: SubmittedRecord | None = None, **more: object) -> Self:
        """Document of a job. ``more``: further fields of a subclass."""
        runs = {"run_ids": [run.run_id for run in job.runs], "run_dirs": [run.run_dir for run in job.runs]}
        return cls.of(job, job_id=submitted.job_id if submitted else None, **runs, **more)


class PreparedDocument(SubmittedDocument):
    """``--no_submit --json``: the file that was written, and the command that submits it."""

    script: Path
    submit_command: tuple[str, ...]


@dataclass
class JobDisplay:
    """Where the report and the messages go. ``run`` shows what also applies to runs on this machine."""

    run: Display
    _steps: ExitStack = field(default_factory=ExitStack)
    _shown: str = ""
    _show: Show | None = None

    def _answer(self, document: SubmittedDocument, *lines: str) -> None:
        if self.run.as_json:
            json.answer(document)
        else:
            show_blocks(*(Line(line, whole=True) for line in lines))

    def prepared(self, job: ClusterJob) -> None:
        """Show a job that was written but not submitted."""
        self._answer(
            PreparedDocument.of_job(job.record, script=job.record.script_path, submit_command=job.submit_command),
            f"prepared {job.record.script_path}",
            f"submit it: {command_text('jobs', 'submit', job.record.job_dir)}",
        )

    def detached(self, job: JobRecord, submitted: SubmittedRecord) -> None:
        """Show the ids and the command that collects the job."""
        self._answer(
            SubmittedDocument.of_job(job, submitted),
            f"job {submitted.job_id}: {job.job_dir}",
            *(f"run {run.run_id}" for run in job.runs),
            f"collect and judge it: {command_text('jobs', 'wait', job.job_dir)}",
        )

    def left_alone(self, job: JobRecord, submitted: SubmittedRecord, signal: int | None) -> None:
        """Show that the wait ended before the job."""
        self.close()
        why = "mbr-perf stopped waiting" if signal is not None else "it has not finished yet"
        narrate(
            f"job {submitted.job_id} continues: {why}",
            Line(f"  collect it: {command_text('jobs', 'wait', job.job_dir)}", whole=True),
            Line(f"  cancel it:  {command_text('jobs', 'cancel', job.job_dir)}", whole=True),
        )
        if self.run.as_json:
            json.answer(SubmittedDocument.of_job(job, submitted))

    def step(self, run_id: str, progress: Progress) -> None:
        """Show a live bar on a terminal; nothing elsewhere."""
        if run_id != self._shown or self._show is None:
            self.close()
            self._show = self._steps.enter_context(step_progress(narration(), progress.num_steps))
            self._shown = run_id
        self._show(str(progress.phase or "start"), progress.step, progress.last_step_s, progress.eta_s)

    def close(self) -> None:
        """Remove the bar from the terminal."""
        self._steps.close()
        self._shown, self._show = "", None
