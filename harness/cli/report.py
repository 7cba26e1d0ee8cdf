"""`mbr-perf report`: the reports of a sweep, written anew from what lies on disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.option_groups import takes
from harness.cli.option_types import Json


# fmt: off
@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Which sweep, which formats, where to."""

    sweep: Annotated[str, typer.Argument(metavar="SWEEP", help="A sweep's folder, its sweep.json, or the start of its id.")]
    formats: Annotated[list[str] | None, typer.Option("--format", metavar="NAME,NAME,...",
        help="html, md, csv, json, png. Default: all of them. Repeatable.")] = None
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where to. Default: the sweep's report folder.")] = None
    results_dir: Annotated[Path | None, typer.Option("--results_dir", metavar="DIR", help="Where sweeps are kept. Default: results of the checkout, else ./results.")] = None
    as_json: Json = False
# fmt: on


@takes(ReportOptions)
def report(asked: ReportOptions) -> None:
    """Judge a sweep again and write its reports: one HTML file that opens offline, Markdown, CSV, JSON, pictures.

    Nothing runs; golden values and formulas are today's. Pictures need the extra mbr-perf[report]. Exits 0 when the
    reports are written, whatever they say.
    """
    from harness.runner.sweep.judging import ReportRequest, report_sweep

    formats = tuple(name.strip() for text in asked.formats or () for name in text.split(",") if name.strip())
    report_sweep(ReportRequest(asked.sweep, formats, asked.out, asked.results_dir, asked.as_json))
