"""A sweep that lies on disk, whole or not: judged, reported, and the exit code that follows."""

from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM

from harness.analysis.compare import GateOptions
from harness.analysis.outcome import comparison_outcome
from harness.analysis.sweep.judge import judge_sweep
from harness.analysis.sweep.values import CellVerdict, SweepVerdict
from harness.errors import BadRequestError, ExitCode
from harness.records.other_kinds import read_only_sweep
from harness.records.sweeps import SweepData, read_sweep
from harness.report import json
from harness.report.charts.available import obstacle
from harness.report.console import Console
from harness.report.printing import print_lines
from harness.report.sweep_json import sweep_document
from harness.report.sweep_reports import LEFT_OUT, REPORT, write_reports, write_tables
from harness.report.sweep_terminal import print_sweep
from harness.runner.sweep.batch import SweepBatch
from harness.runner.sweep.showing import SweepDisplay

_WORST_FIRST = (ExitCode.RUN_FAILED, ExitCode.REGRESSION, ExitCode.INCONCLUSIVE, ExitCode.IMPROVEMENT)


def answer(batch: SweepBatch, display: SweepDisplay, signal: int | None = None) -> ExitCode:
    """Judge and show what lies on disk; ``signal`` ended the sitting. Starts nothing."""
    num_due, data = len(batch.due()), read_sweep(batch.folder)
    gate = GateOptions.of(data.plan.gate)
    try:
        verdict = judge_sweep(data, gate)
    except BadRequestError as error:
        raise BadRequestError(str(error), remedy=f"the sweep itself is kept in {batch.folder}") from error
    display.result(verdict, _reports(verdict, data, display, signal), batch.folder, num_due)
    if signal is not None:
        return ExitCode.TERMINATED if signal == SIGTERM else ExitCode.INTERRUPTED
    return sweep_exit_code(verdict, gate, num_due)


def _reports(verdict: SweepVerdict, data: SweepData, display: SweepDisplay, signal: int | None) -> tuple[Path, ...]:
    """What could be written; the answer must not be lost with a report. Who interrupts does not wait for pictures."""
    try:
        if signal is None:
            return write_reports(verdict, data, data.sweep_dir / REPORT)
        display.says(f"interrupted: {LEFT_OUT} are left out; mbr-perf report {data.sweep_dir} makes them")
        return write_tables(verdict, data, data.sweep_dir / REPORT)
    except (BadRequestError, ValueError, RuntimeError) as error:  # ValueError: what the chart renderer raises
        display.says(
            f"the reports could not be written: {error}; mbr-perf report {data.sweep_dir} --out FOLDER tries again"
        )
        return ()


def sweep_exit_code(verdict: SweepVerdict, gate: GateOptions, num_due: int) -> ExitCode:
    """The worst of the cells, where running out of memory and being pruned are results.

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
    """Write the files, show the table. BadRequestError for no such sweep or format, and where nothing can be written."""
    data = read_only_sweep(request.sweep, request.results_dir)
    verdict = judge_sweep(data, GateOptions.of(data.plan.gate))
    paths = write_reports(verdict, data, request.out or data.sweep_dir / REPORT, request.formats)
    if request.as_json:
        print(json.text(sweep_document(verdict, paths)))  # noqa: T201 (the answer)
    else:
        print_sweep(Console(highlight=False), verdict)
        print_lines(Console(highlight=False), ["", *(f"Report: {path}" for path in paths)])
    if obstacle():
        print_lines(Console(stderr=True, highlight=False), [obstacle()])
