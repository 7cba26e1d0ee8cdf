"""Shows a run: request, progress, result. The report goes to stdout, messages to stderr."""

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
from harness.showing.terminal import narrate, narration, shares_terminal, show_blocks, show_page


@dataclass(frozen=True)
class Display:
    """Where the report and the messages go."""

    as_json: bool = False
    explain: bool = False

    def plan(self, understood: Understood, prediction: RunPrediction, plan: Plan | SlurmJob | None = None) -> None:
        """Show a dry run: the plan, the settings, the effect of recompute, and the prediction.

        ``plan``: if it is not this node's launch.
        """
        plan = plan or understood.plan
        if self.as_json:
            from harness.run.document import run_plan_document

            json.answer(run_plan_document(understood, prediction, plan))
            return
        record = prediction.prediction.record() if prediction.prediction else None
        line = prediction_line(record, prediction.reason)
        misfit = misfit_line(record, understood.spec.capacity_bytes)
        submission = f"\n\n# submitted with\n{plan.command_line}" if isinstance(plan, SlurmJob) else ""
        script = Code(f"{plan.render().rstrip()}{submission}")
        sources = () if self.explain else (GAP, explanation(understood.spec, understood.sources))
        predicted = Listing(tuple(text for text in (line, misfit) if text))
        show_blocks(*self._about(understood), predicted, GAP, script, *sources)

    def understood(self, understood: Understood) -> None:
        """Before anything starts, show the resolved request and every warning."""
        narrate(*self._about(understood))

    def warn_of_misfit(self, understood: Understood, kept: KeptPrediction) -> None:
        """Before the ranks start, warn if the prediction does not fit. The run starts anyway."""
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
        """Show a live bar on a terminal, occasional lines elsewhere."""
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
        """Show figures and verdict of all runs in ``run_ids``, and the ranks of the last run, ``record``."""
        if self.as_json:
            from harness.run.document import run_document

            json.answer(run_document(record, metrics, comparison, verdict, run_dir, run_ids))
        else:
            with_request = not shares_terminal()  # `understood` has shown it there
            show_page(run_page(record, metrics, comparison, verdict, run_dir, with_request=with_request))
