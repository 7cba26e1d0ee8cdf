"""Shows the plan, the progress and the answer of a sweep."""

from dataclasses import dataclass
from pathlib import Path

from harness.batch.plan import BatchDisplay
from harness.errors import ExitCode
from harness.records.sweep import SweepPlan
from harness.showing import json
from harness.showing.page import Line
from harness.showing.terminal import show_blocks, show_page, show_stopped
from harness.sweep.page import plan_page, summary_lines, sweep_page
from harness.sweep.values import SweepVerdict
from harness.units import counted


@dataclass(frozen=True)
class SweepDisplay(BatchDisplay):
    """Where the answer and the narration of a sweep go."""

    def plan(self, plan: SweepPlan) -> None:
        """Show the dry run: every cell, its prediction and whether it would run."""
        if self.as_json:
            from harness.sweep.document import SweepPlanDocument

            json.answer(SweepPlanDocument.of_plan(plan))
        else:
            show_page(plan_page(plan))

    def begins(self, plan: SweepPlan, sweep_dir: Path, num_due: int, warning: str = "") -> None:
        """Show, before the first run, how many cells run, which do not and why, and how to resume after a kill."""
        self.narrate(*summary_lines(plan), f"{counted(num_due, 'run')} to do; results in {sweep_dir}")
        if warning:
            self.narrate(Line(f"Warning: {warning}", "strong", hang=2))

    def stopped(
        self, verdict: SweepVerdict, reports: tuple[Path, ...], sweep_dir: Path, num_due: int, code: ExitCode
    ) -> None:
        """Show that a signal ended the sitting: three lines, or as JSON the whole document."""
        if self.as_json:
            self.result(verdict, reports, sweep_dir, num_due)
        else:
            show_stopped(
                f"{counted(num_due, 'run')} still to do", code, sweep_dir, f"mbr-perf sweep --resume {sweep_dir}"
            )

    def result(self, verdict: SweepVerdict, reports: tuple[Path, ...], sweep_dir: Path, num_due: int) -> None:
        """Show the answer; for an unfinished sweep also the command that continues it."""
        if self.as_json:
            from harness.sweep.document import SweepRunDocument

            json.answer(SweepRunDocument.of_verdict(verdict, reports, sweep_dir=sweep_dir, num_runs_due=num_due))
        else:
            show_verdict(verdict, reports)
        if num_due:
            are = "is" if num_due == 1 else "are"
            line = f"{counted(num_due, 'run')} {are} not done: mbr-perf sweep --resume {sweep_dir}"
            self.narrate(Line(line, whole=True))


def show_verdict(verdict: SweepVerdict, reports: tuple[Path, ...]) -> None:
    """Show the answer as a page, and the paths of its reports."""
    show_page(sweep_page(verdict))
    show_blocks(*(Line(f"Report: {path}", whole=True) for path in reports))
