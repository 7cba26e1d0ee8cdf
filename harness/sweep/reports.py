"""Judges a sweep from its folder, shows its plan, progress and answer, and writes its reports."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import SIGTERM

from harness.batch.plan import BatchDisplay
from harness.errors import BadRequestError, ExitCode, os_errors_reported
from harness.judge.gate import comparison_outcome
from harness.records.gating import GateOptions
from harness.records.store import write_atomically
from harness.records.sweep import SweepData, SweepPlan, read_sweep
from harness.show import json
from harness.show.charts.drawing import obstacle, png
from harness.show.html import html
from harness.show.markup import markdown
from harness.show.page import Line, Picture
from harness.show.progress import counted_off
from harness.show.terminal import narrate, narration, show_blocks, show_page, show_stopped
from harness.sweep.batch import SweepBatch
from harness.sweep.judge import judge_sweep
from harness.sweep.page import Origin, origin_of, plan_page, summary_lines, sweep_page
from harness.sweep.values import CellVerdict, SweepVerdict
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


REPORT = "report"
PICTURES = ("memory_throughput", "ms_per_gib", "rank_memory", "timeline", "predicted_measured", "step_times")


@dataclass(frozen=True)
class _Material:
    verdict: SweepVerdict
    pictures: tuple[Picture, ...]
    folder: Path
    formats: tuple[str, ...]
    origin: Origin


def write_reports(
    verdict: SweepVerdict, data: SweepData, folder: Path, formats: Sequence[str] | None = None
) -> tuple[Path, ...]:
    """Write every format of :data:`FORMATS`, or ``formats``, into ``folder``; return the paths, the page first.

    Replaces existing files. BadRequestError for an unknown format, and if nothing can be written.
    """
    chosen = tuple(formats or FORMATS)
    unknown = [name for name in chosen if name not in FORMATS]
    if unknown:
        raise BadRequestError(f"no report format {', '.join(unknown)}", remedy=f"one of: {', '.join(FORMATS)}")
    material = _Material(verdict, _pictures(data, verdict, chosen), folder, chosen, origin_of(data, folder))
    with os_errors_reported(f"{folder}: cannot be written", "name another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        return tuple(path for name in FORMATS if name in chosen for path in FORMATS[name](material))


def write_at_once(verdict: SweepVerdict, data: SweepData, folder: Path) -> tuple[Path, ...]:
    """Write all files, tables first, except PNG files, which take seconds. Removes PNG files of earlier reports."""
    with os_errors_reported(f"{folder}: cannot be written", "name another folder"):
        for picture in PICTURES:
            (folder / f"{picture}.png").unlink(missing_ok=True)
    tables = write_reports(verdict, data, folder, ("csv", "json"))
    return (*write_reports(verdict, data, folder, ("html", "md")), *tables)


def _pictures(data: SweepData, verdict: SweepVerdict, formats: Sequence[str]) -> tuple[Picture, ...]:
    if obstacle() or not {"html", "md", "png"} & set(formats):
        return ()
    from harness.sweep.pictures.gallery import pictures

    return pictures(data, verdict)


def _write(path: Path, text: str) -> tuple[Path, ...]:
    write_atomically(path, text)
    return (path,)


def _html(material: _Material) -> tuple[Path, ...]:
    page = sweep_page(material.verdict, material.pictures, obstacle(), material.origin)
    return _write(material.folder / "report.html", html(page))


def _markdown(material: _Material) -> tuple[Path, ...]:
    page = sweep_page(material.verdict, material.pictures, origin=material.origin)
    return _write(material.folder / "report.md", markdown(page, with_images="png" in material.formats))


def _csv(material: _Material) -> tuple[Path, ...]:
    from harness.sweep.document import sweep_csv

    return _write(material.folder / "report.csv", sweep_csv(material.verdict))


def _json(material: _Material) -> tuple[Path, ...]:
    from harness.sweep.document import SweepDocument

    return _write(material.folder / "report.json", json.text(SweepDocument.of_verdict(material.verdict)) + "\n")


def _png(material: _Material) -> tuple[Path, ...]:
    drawn = {material.folder / f"{each.name}.png": each.vega_lite for each in material.pictures if each.vega_lite}
    for path, vega_lite in drawn.items():
        write_atomically(path, png(vega_lite))
    return tuple(drawn)


FORMATS: dict[str, Callable[[_Material], tuple[Path, ...]]] = {
    "html": _html, "md": _markdown, "csv": _csv, "json": _json, "png": _png,
}  # fmt: skip


_WORST_FIRST = (ExitCode.RUN_FAILED, ExitCode.REGRESSION, ExitCode.INCONCLUSIVE, ExitCode.IMPROVEMENT)


def answer(batch: SweepBatch, display: SweepDisplay, signal: int | None = None) -> ExitCode:
    """Judge the sweep on disk and show the answer; ``signal`` ended the sitting. Starts nothing."""
    num_due, data = len(batch.due()), read_sweep(batch.folder)
    gate = data.plan.gate
    try:
        verdict = judge_sweep(data, gate)
    except BadRequestError as error:
        raise BadRequestError(str(error), remedy=f"the sweep itself is kept in {batch.folder}") from error
    reports = _reports(verdict, data, display, signal)
    if signal is not None:
        code = ExitCode.TERMINATED if signal == SIGTERM else ExitCode.INTERRUPTED
        display.stopped(verdict, reports, batch.folder, num_due, code)
        return code
    display.result(verdict, reports, batch.folder, num_due)
    return sweep_exit_code(verdict, gate, num_due)


def _reports(verdict: SweepVerdict, data: SweepData, display: SweepDisplay, signal: int | None) -> tuple[Path, ...]:
    """Return the written files: a failed report must not hide the answer. An interrupted sweep skips PNG files."""
    try:
        if signal is None:
            return write_reports(verdict, data, data.sweep_dir / REPORT)
        if not obstacle():
            display.narrate(f"interrupted: the PNG pictures are left out; mbr-perf report {data.sweep_dir} makes them")
        return write_at_once(verdict, data, data.sweep_dir / REPORT)
    except (BadRequestError, ValueError, RuntimeError) as error:  # ValueError: what the chart renderer raises
        display.narrate(
            f"the reports could not be written: {error}; mbr-perf report {data.sweep_dir} --out FOLDER tries again"
        )
        return ()


def sweep_exit_code(verdict: SweepVerdict, gate: GateOptions, num_due: int) -> ExitCode:
    """Return the exit code of the worst cell; running out of memory and being pruned are results.

    3 for a failed cell, 5 for a regression, 6 where something could not be judged, 7 on request; else 0.
    ``num_due``: runs that are still to be done; a sweep with any has no answer yet.
    """
    codes = {_exit_code(cell, gate) for cell in verdict.cells}
    unused = gate.names_one_golden and not any(cell.golden for cell in verdict.cells)
    if num_due or unused:
        codes.add(ExitCode.INCONCLUSIVE)
    return next((code for code in _WORST_FIRST if code in codes), ExitCode.OK)


def _exit_code(cell: CellVerdict, gate: GateOptions) -> ExitCode:
    if cell.status == "failed":
        return ExitCode.RUN_FAILED
    if cell.status != "ok":
        return ExitCode.OK
    if cell.golden is not None:
        return comparison_outcome(cell.golden, fail_on_improvement=gate.fail_on_improvement)[1]
    required = gate.require_golden or (gate.golden_values_path is not None and not gate.names_one_golden)
    return ExitCode.INCONCLUSIVE if required else ExitCode.OK


@dataclass(frozen=True)
class ReportRequest:
    """``formats`` empty: all. ``out`` None: the sweep's own report folder."""

    sweep: str
    formats: tuple[str, ...] = ()
    out: Path | None = None
    results_dir: Path | None = None
    as_json: bool = False


def report_sweep(request: ReportRequest) -> None:
    """Write the files, show the table. BadRequestError for an unknown sweep or format, or if nothing can be written."""
    data = read_sweep(request.sweep, request.results_dir, partial(counted_off, narration(), "Reading cells"))
    verdict = judge_sweep(data, data.plan.gate, partial(counted_off, narration(), "Judging cells"))
    paths = write_reports(verdict, data, request.out or data.sweep_dir / REPORT, request.formats)
    if request.as_json:
        from harness.sweep.document import SweepDocument

        json.answer(SweepDocument.of_verdict(verdict, paths))
    else:
        show_verdict(verdict, paths)
    if obstacle():
        narrate(obstacle())


def show_verdict(verdict: SweepVerdict, reports: tuple[Path, ...]) -> None:
    """Show the answer as a page, and the paths of its reports."""
    show_page(sweep_page(verdict))
    show_blocks(*(Line(f"Report: {path}", whole=True) for path in reports))
