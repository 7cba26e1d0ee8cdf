"""Shows the progress and the answer of a night."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.batch.plan import BatchDisplay
from harness.launch.slurm.job import SlurmJob
from harness.night.outlook import CaseOutlook, outlook_page
from harness.night.page import night_page
from harness.night.values import NightVerdict
from harness.records.night import NightPlan
from harness.showing import json
from harness.showing.terminal import show_page


@dataclass(frozen=True)
class NightDisplay(BatchDisplay):
    """Where the answer and the narration of a night go."""

    def plan(self, plan: NightPlan, cases: tuple[CaseOutlook, ...], jobs: Sequence[SlurmJob]) -> None:
        """The dry run; of ``jobs`` the batch files that would be submitted first, and the commands that would do it."""
        if self.as_json:
            from harness.night.document import night_plan_document

            json.answer(night_plan_document(plan, cases, jobs))
            return
        show_page(outlook_page(plan, cases))
        self.batch_files(jobs)

    def begins(self, plan: NightPlan, night_dir: Path) -> None:
        """Before the first run: what cannot run and why, and where everything will lie."""
        refused = [f"{case.name}: refused: {case.refused}" for case in plan.cases if case.refused]
        self.says(*(f"Note: {note}" for note in plan.notes), *refused, f"Kept in {night_dir}")

    def result(self, verdict: NightVerdict, reports: Iterable[Path]) -> None:
        """The answer; also of a night that was cut short, which says how to go on."""
        if self.as_json:
            from harness.night.document import NightDocument

            json.answer(NightDocument.of_night(verdict, reports))
        else:
            show_page(night_page(verdict))
        if verdict.num_due:
            self.says(f"Not all runs are done: mbr-perf nightly --resume {verdict.night_dir}")
