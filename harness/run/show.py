"""What a person sees of a run: understood, progress, result. stdout is the answer, stderr the narration."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ExitCode
from harness.judging.gate import Comparison, Outcome
from harness.judging.metrics import Metrics
from harness.launch.heartbeats import Progress
from harness.launch.replay import Plan
from harness.launch.slurm.job import SlurmJob
from harness.records.run import RunRecord
from harness.run.predicting.prediction import KeptPrediction, RunPrediction, misfit_line, prediction_line
from harness.run.result import print_run
from harness.run.understanding import Understood
from harness.showing import json
from harness.showing.printing import Console
from harness.showing.progress import step_progress
from harness.showing.request_text import effect_lines, explanation, finding_lines, request_lines


@dataclass(frozen=True)
class Display:
    """Where the answer and the narration go."""

    as_json: bool = False
    explain: bool = False

    @property
    def _narration(self) -> Console:
        return Console(stderr=True, highlight=False)

    def plan(self, understood: Understood, foretold: RunPrediction, plan: Plan | SlurmJob | None = None) -> None:
        """The dry run: the plan that would run, the settings, what recompute will do, what is predicted.

        ``plan``: where it is not this node's launch.
        """
        plan = plan or understood.plan
        if self.as_json:
            from harness.run.document import run_plan_document

            json.answer(run_plan_document(understood, foretold, plan))
            return
        prediction = foretold.prediction.record() if foretold.prediction else None
        told = prediction_line(prediction, foretold.reason)
        misfit = misfit_line(prediction, understood.spec.capacity_bytes)
        submission = ["", "# submitted with", plan.command_line] if isinstance(plan, SlurmJob) else []
        said = [*self._about(understood), told, *([misfit] if misfit else [])]
        self._lines(Console(highlight=False), [*said, "", plan.render().rstrip(), *submission])
        if not self.explain:
            self._lines(Console(highlight=False), ["", *explanation(understood.spec, understood.sources)])

    def understood(self, understood: Understood) -> None:
        """Before anything starts: what was understood, and every warning."""
        self._lines(self._narration, self._about(understood))

    def foretold(self, understood: Understood, kept: KeptPrediction) -> None:
        """Before the ranks start: a warning where what is predicted does not fit. A measurement decides all the same."""
        warning = misfit_line(kept.prediction, understood.spec.capacity_bytes)
        self._lines(self._narration, [warning] if warning else [])

    def _about(self, understood: Understood) -> list[str]:
        lines = [
            *request_lines(understood.spec),
            *effect_lines(understood.effective),
            *(f"Note: {note}" for note in understood.notes),
            *finding_lines(understood.findings),
        ]
        return [*lines, "", *explanation(understood.spec, understood.sources)] if self.explain else lines

    @contextmanager
    def progress(self, understood: Understood) -> Iterator[Callable[[Progress], None]]:
        """A live bar on a terminal, a line now and then elsewhere."""
        with step_progress(self._narration, understood.spec.measure.max_steps) as show:
            yield lambda p: show(str(p.phase or "start"), p.step, p.last_step_s, p.eta_s)

    def result(
        self,
        record: RunRecord,
        metrics: Metrics,
        comparison: Comparison,
        verdict: tuple[Outcome, ExitCode],
        run_dir: Path,
        *,
        run_ids: Sequence[str],
    ) -> None:
        """The answer: figures and verdict of all runs in ``run_ids``, ranks of the last one, ``record``."""
        if self.as_json:
            from harness.run.document import run_document

            json.answer(run_document(record, metrics, comparison, verdict, run_dir, run_ids))
        else:
            print_run(Console(highlight=False), record, metrics, comparison, verdict, run_dir)

    @staticmethod
    def _lines(console: Console, lines: list[str]) -> None:
        for line in lines:
            console.print(line, markup=False, soft_wrap=True)
