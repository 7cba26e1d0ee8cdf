"""Judges a sweep from its folder, shows its plan, progress and answer, and writes its reports."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from harness.batch.batch import BatchDisplay
from harness.errors import BadRequestError, ExitCode, os_errors_reported
from harness.judge.gate import comparison_outcome, status_exit_code
from harness.records.gating import GateOptions
from harness.records.store import write_atomically
from harness.records.sweep import SweepData, SweepPlan, read_sweep
from harness.show import json
from harness.show.html import html
from harness.show.markup import markdown
from harness.show.page import GAP, Line, details
from harness.show.progress import counted_off
from harness.show.svg import svg_file
from harness.show.terminal import narration, show_page, show_stopped
from harness.sweep.batch import SweepBatch
from harness.sweep.judge import judge_sweep
from harness.sweep.page import origin_of, pictures, plan_page, summary_lines, sweep_page
from harness.sweep.values import CellVerdict, SweepPlanDocument, SweepRunDocument, SweepVerdict
from harness.units import command_text, counted


@dataclass(frozen=True)
class SweepDisplay(BatchDisplay):
    """Where the answer and the narration of a sweep go."""

    def plan(self, plan: SweepPlan) -> None:
        """Show the dry run: every cell, its prediction and whether it would run."""
        if self.as_json:
            json.answer(SweepPlanDocument.of(plan))
        else:
            show_page(plan_page(plan))

    def begins(self, plan: SweepPlan, sweep_dir: Path, num_due: int, warning: str = "") -> None:
        """Show, before the first run, how many cells run, which do not and why, and how to resume after a kill."""
        self.narrate(*summary_lines(plan), f"{counted(num_due, 'run')} to do; results in {sweep_dir}")
        if warning:
            self.narrate(Line(f"Warning: {warning}", "strong", hang=2))

    def result(self, found: SweepRunDocument, stopped: ExitCode | None) -> None:
        """Show the answer; for an unfinished sweep also the command that continues it. ``stopped``: by a signal."""
        to_do = f"{counted(found.num_runs_missing, 'run')} still to do"
        resume = command_text("sweep", "--resume", found.sweep_dir)
        if self.as_json:
            json.answer(found)
        elif stopped is not None:
            show_stopped(to_do, stopped, None, resume)
            return
        else:
            show_verdict(found, found.report)
        if found.num_runs_missing:
            self.narrate(Line(f"{to_do}: {resume}", whole=True))


REPORT = "report"


def write_reports(verdict: SweepVerdict, data: SweepData, folder: Path) -> tuple[Path, ...]:
    """Write page, Markdown, JSON and pictures; return their paths. BadRequestError if they cannot be written."""
    drawn = tuple(pictures(verdict))
    origin = origin_of(data)
    with os_errors_reported(f"{folder}: cannot be written", "name another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        page = sweep_page(verdict, drawn, origin)
        texts = {
            "report.html": html(page),
            "report.md": markdown(page, with_images=True),
            "report.json": json.text(verdict) + "\n",
            **{f"{picture.name}.svg": svg_file(picture) for picture in drawn},
        }
        for name, text in texts.items():
            write_atomically(folder / name, text)
    return tuple(folder / name for name in texts)


_WORST_FIRST = (ExitCode.RUN_FAILED, ExitCode.REGRESSION, ExitCode.INCONCLUSIVE, ExitCode.IMPROVEMENT)


def answer(batch: SweepBatch, display: SweepDisplay, signal: int | None = None) -> ExitCode:
    """Judge the sweep on disk and show the answer; ``signal`` ended the sitting. Starts nothing."""
    batch.due()  # writes down the lessons of runs that ended since
    data = read_sweep(batch.folder)
    gate = data.plan.gate
    try:
        verdict = judge_sweep(data, gate)
    except BadRequestError as error:
        raise BadRequestError(str(error), remedy=f"the sweep itself is kept in {batch.folder}") from error
    reports: tuple[Path, ...] = ()
    try:
        reports = write_reports(verdict, data, data.sweep_dir / REPORT)
    except BadRequestError as error:  # a failed report must not hide the answer
        again = command_text("report", data.sweep_dir, "--out", "FOLDER")
        display.narrate(f"the reports could not be written: {error}; {again} tries again")
    stopped = None if signal is None else status_exit_code("interrupted", signal)
    found = SweepRunDocument.of(verdict, report=reports, sweep_dir=batch.folder)
    display.result(found, stopped)
    return sweep_exit_code(verdict, gate) if stopped is None else stopped


def sweep_exit_code(verdict: SweepVerdict, gate: GateOptions) -> ExitCode:
    """Return the exit code of the worst cell; running out of memory and being pruned are results.

    3 for a failed cell, 5 for a regression, 6 where something is due or could not be judged, 7 on request; else 0.
    """
    codes = {_exit_code(cell, gate) for cell in verdict.cells}
    unused = gate.names_one_golden and not any(cell.golden for cell in verdict.cells)
    if verdict.num_runs_missing or unused:
        codes.add(ExitCode.INCONCLUSIVE)
    return next((code for code in _WORST_FIRST if code in codes), ExitCode.OK)


def _exit_code(cell: CellVerdict, gate: GateOptions) -> ExitCode:
    if cell.status == "failed":
        return ExitCode.RUN_FAILED
    if cell.status != "ok":
        return ExitCode.OK
    if cell.compared is not None:
        return comparison_outcome(cell.compared, fail_on_improvement=gate.fail_on_improvement)[1]
    required = gate.require_golden or (gate.golden_values_path is not None and not gate.names_one_golden)
    return ExitCode.INCONCLUSIVE if required else ExitCode.OK


def report_sweep(sweep: str, out: Path | None, results: Path | None, *, as_json: bool) -> None:
    """Write the reports and show the table. BadRequestError for an unknown sweep, or if they cannot be written."""
    data = read_sweep(sweep, results, partial(counted_off, narration(), "Reading cells"))
    verdict = judge_sweep(data, data.plan.gate)
    paths = write_reports(verdict, data, out or data.sweep_dir / REPORT)
    if as_json:
        json.answer(verdict.model_copy(update={"report": paths}))
    else:
        show_verdict(verdict, paths)


def show_verdict(verdict: SweepVerdict, reports: tuple[Path, ...]) -> None:
    """Show the answer as a page, with the path of its first report."""
    page, lines = sweep_page(verdict), [Line(f"Report: {path}", whole=True) for path in reports]
    show_page(replace(page, blocks=(*page.blocks, GAP, *lines[:1], details("report", lines[1:]))))
