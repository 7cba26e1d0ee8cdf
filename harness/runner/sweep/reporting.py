"""A sweep that lies on disk, judged and reported."""

from dataclasses import dataclass
from pathlib import Path

from harness.analysis.sweep.judge import judge_sweep
from harness.records.other_kinds import read_only_sweep
from harness.report import json
from harness.report.charts.available import obstacle
from harness.report.console import Console
from harness.report.printing import print_lines
from harness.report.sweep_json import sweep_document
from harness.report.sweep_reports import REPORT, write_reports
from harness.report.sweep_terminal import print_sweep
from harness.runner.sweep.sweep import gate_of


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
    verdict = judge_sweep(data, gate_of(data.plan.gate))
    paths = write_reports(verdict, data, request.out or data.sweep_dir / REPORT, request.formats)
    if request.as_json:
        print(json.text(sweep_document(verdict, paths)))  # noqa: T201 (the answer)
    else:
        print_sweep(Console(highlight=False), verdict)
        print_lines(Console(highlight=False), ["", *(f"Report: {path}" for path in paths)])
    if obstacle():
        print_lines(Console(stderr=True, highlight=False), [obstacle()])
