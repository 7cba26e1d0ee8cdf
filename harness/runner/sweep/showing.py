"""What a person sees of a sweep: its plan, its progress, its answer. stdout is the answer, stderr the narration."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.analysis.sweep.values import SweepVerdict
from harness.records.sweep import SweepPlan
from harness.report import json
from harness.report.cell_progress import CellProgress, cell_progress
from harness.report.console import Console
from harness.report.printing import print_lines
from harness.report.sweep_json import sweep_document
from harness.report.sweep_plan import plan_document, print_plan, summary_lines
from harness.report.sweep_terminal import print_sweep


@dataclass(frozen=True)
class SweepDisplay:
    """Where the answer and the narration go."""

    as_json: bool = False

    @property
    def _narration(self) -> Console:
        return Console(stderr=True, highlight=False)

    def plan(self, plan: SweepPlan) -> None:
        """The dry run: every cell, what is predicted of it and what would become of it."""
        if self.as_json:
            print(json.text(plan_document(plan)))  # noqa: T201 (the answer)
        else:
            print_plan(Console(highlight=False), plan)

    def says(self, line: str) -> None:
        """What is being waited for."""
        print_lines(self._narration, [line])

    def begins(self, plan: SweepPlan, sweep_dir: Path, num_due: int, warning: str = "") -> None:
        """Before the first run: how many cells run, which do not and why, and how to go on after a kill."""
        print_lines(self._narration, [*summary_lines(plan), f"{_runs(num_due)} to do, kept in {sweep_dir}"])
        if warning:
            print_lines(self._narration, [f"Warning: {warning}"], style="bold")

    @contextmanager
    def progress(self, num_due: int) -> Iterator[CellProgress]:
        """Bars on a terminal, lines elsewhere."""
        with cell_progress(self._narration, num_due) as progress:
            yield progress

    def result(self, verdict: SweepVerdict, reports: tuple[Path, ...], sweep_dir: Path, num_due: int) -> None:
        """The answer; also of a sweep that was cut short, which says how to go on."""
        if self.as_json:
            document = sweep_document(verdict, reports) | {"sweep_dir": str(sweep_dir), "num_runs_due": num_due}
            print(json.text(document))  # noqa: T201 (the answer)
        else:
            print_sweep(Console(highlight=False), verdict)
            print_lines(Console(highlight=False), [f"Report: {path}" for path in reports])
        if num_due:
            told = f"{_runs(num_due)} {'is' if num_due == 1 else 'are'} not done: mbr-perf sweep --resume {sweep_dir}"
            print_lines(self._narration, [told])


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"
