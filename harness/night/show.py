"""Shows the progress and the answer of a night."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from harness.launch.slurm.job import SlurmJob
from harness.night.document import aa_lines, night_document
from harness.night.outlook import CaseOutlook, outlook_document, print_outlook
from harness.night.remarks import stories
from harness.night.rows import night_rows, remark_text
from harness.night.values import CaseVerdict, NightVerdict
from harness.night.words import about, answer, headline, is_red
from harness.records.night import NightPlan
from harness.showing import json
from harness.showing.json import Document
from harness.showing.page import on_one_line
from harness.showing.printing import Console, plain_table, print_hanging, print_lines, show
from harness.showing.progress import CellProgress, cell_progress

_WIDE = 150
_STYLES = {"pass": "green", "improvement": "cyan", "inconclusive": "yellow"}


def print_night(console: Console, verdict: NightVerdict) -> None:
    """A night, finished or not; piped, the table is as wide as it needs. The last line alone says how it went."""
    print_lines(console, [f"{verdict.plan.title}: {headline(verdict)}"], style="bold")
    print_lines(console, [about(verdict), *(f"Note: {note}" for note in verdict.plan.notes)])
    for line in aa_lines(verdict):
        print_hanging(console, Text(line), 2)
    console.print()
    _table(console, verdict)
    for story in stories(verdict):
        console.print()
        print_hanging(console, Text(story.title, style=_style(story.case)), 2)
        for line in story.said:
            print_hanging(console, Text(f"  {line}"), 4)
        for line in story.to_copy:
            console.print(Text(on_one_line(f"  {line}")), soft_wrap=True)
    console.print()
    print_lines(console, [f"Night: {verdict.night_dir}"])
    print_hanging(console, Text(answer(verdict), style="bold"), 2)


def _table(console: Console, verdict: NightVerdict) -> None:
    """On a small screen the remarks stand below; those of red cases are among what is told of them anyway."""
    narrow = console.is_terminal and console.width < _WIDE
    rows = night_rows(verdict.cases, narrow=narrow)
    right = [title for title, is_right in zip(rows.titles, rows.right, strict=True) if is_right]
    table = plain_table(*rows.titles, right=right)
    for case, texts in zip(verdict.cases, rows.texts, strict=True):
        name, outcome, *others = texts
        table.add_row(Text(name), Text(outcome, style=_style(case)), *(Text(text) for text in others))
    show(console, table)
    if narrow:
        _remarks(console, [case for case in verdict.cases if not is_red(case)])


def _remarks(console: Console, cases: Iterable[CaseVerdict]) -> None:
    told = [f"{case.planned.name}: {remark_text(case)}" for case in cases if remark_text(case)]
    if told:
        console.print()
    for remark in told:
        print_hanging(console, Text(remark), 2)


def _style(case: CaseVerdict) -> str:
    if case.is_expected:
        return "dim"
    return _STYLES.get(case.outcome, "bold red" if is_red(case) else "")


@dataclass(frozen=True)
class NightDisplay:
    """Where the answer and the narration go."""

    as_json: bool = False

    @property
    def _narration(self) -> Console:
        return Console(stderr=True, highlight=False)

    def plan(self, plan: NightPlan, cases: tuple[CaseOutlook, ...], jobs: Sequence[SlurmJob]) -> None:
        """The dry run; of ``jobs`` the batch files that would be submitted first, and the commands that would do it."""
        if self.as_json:
            on_slurm = {"jobs": [_job_document(job) for job in jobs]} if plan.slurm else {}
            print(json.text(outlook_document(plan, cases) | on_slurm))  # noqa: T201 (the answer)
            return
        print_outlook(Console(highlight=False), plan, cases)
        for job in jobs:
            print_lines(Console(highlight=False), ["", *job.render().splitlines(), "", shlex.join(job.sbatch)])

    def says(self, line: str) -> None:
        """What is being waited for, or could not be done."""
        print_lines(self._narration, [line])

    def begins(self, plan: NightPlan, night_dir: Path) -> None:
        """Before the first run: what cannot run and why, and where everything will lie."""
        refused = [f"{case.name}: refused: {case.refused}" for case in plan.cases if case.refused]
        print_lines(self._narration, [*(f"Note: {note}" for note in plan.notes), *refused, f"Kept in {night_dir}"])

    @contextmanager
    def progress(self, num_due: int) -> Iterator[CellProgress]:
        """A round of so many runs: bars on a terminal, lines elsewhere."""
        with cell_progress(self._narration, num_due) as progress:
            yield progress

    def result(self, verdict: NightVerdict, reports: Iterable[Path]) -> None:
        """The answer; also of a night that was cut short, which says how to go on."""
        if self.as_json:
            print(json.text(night_document(verdict, reports)))  # noqa: T201 (the answer)
        else:
            print_night(Console(highlight=False), verdict)
        if verdict.num_due:
            self.says(f"Not all runs are done: mbr-perf nightly --resume {verdict.night_dir}")


def _job_document(job: SlurmJob) -> Document:
    return {"name": job.record.name, "runs": [run.run_dir for run in job.record.runs], **job.document()}
