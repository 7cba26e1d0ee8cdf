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
from harness.run.result import run_page
from harness.run.understanding import Understood
from harness.showing import json
from harness.showing.page import GAP, Block, Code, Line, Listing
from harness.showing.progress import step_progress
from harness.showing.request_text import explanation, finding_lines, request_facts
from harness.showing.terminal import narrate, narration, show_blocks, show_page


@dataclass(frozen=True)
class Display:
    """Where the answer and the narration go."""

    as_json: bool = False
    explain: bool = False

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
        submission = f"\n\n# submitted with\n{plan.command_line}" if isinstance(plan, SlurmJob) else ""
        script = Code(f"{plan.render().rstrip()}{submission}")
        sources = () if self.explain else (GAP, explanation(understood.spec, understood.sources))
        predicted = Listing(tuple(line for line in (told, misfit) if line))
        show_blocks(*self._about(understood), predicted, GAP, script, *sources)

    def understood(self, understood: Understood) -> None:
        """Before anything starts: what was understood, and every warning."""
        narrate(*self._about(understood))

    def foretold(self, understood: Understood, kept: KeptPrediction) -> None:
        """Before the ranks start: a warning where what is predicted does not fit. A measurement decides all the same."""
        if warning := misfit_line(kept.prediction, understood.spec.capacity_bytes):
            narrate(Line(warning, hang=2))

    def _about(self, understood: Understood) -> tuple[Block, ...]:
        return (
            request_facts(understood.spec, understood.effective),
            Listing(tuple(f"Note: {note}" for note in understood.notes), hang=6),
            finding_lines(understood.findings),
            *((GAP, explanation(understood.spec, understood.sources)) if self.explain else ()),
        )

    @contextmanager
    def progress(self, understood: Understood) -> Iterator[Callable[[Progress], None]]:
        """A live bar on a terminal, a line now and then elsewhere."""
        with step_progress(narration(), understood.spec.measure.max_steps) as show:
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
            show_page(run_page(record, metrics, comparison, verdict, run_dir))
