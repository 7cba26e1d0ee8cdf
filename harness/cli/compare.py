"""`mbr-perf compare`: judge a run that was measured earlier."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.option_groups import takes
from harness.cli.options import JudgeOptions


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """What to compare with what."""

    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, a record.json, or the start of a run's id.")]
    golden: Annotated[
        str | None,
        typer.Argument(
            metavar="[GOLDEN]",
            help="A golden file or folder, or another run. Default: the golden of the run's settings.",
        ),
    ] = None
    repeat: Annotated[
        list[str] | None,
        typer.Option("--repeat", metavar="RUN", help="A further run of the same settings; their medians are compared."),
    ] = None
    results_dir: Annotated[
        Path | None,
        typer.Option(
            "--results_dir",
            metavar="DIR",
            help="Where runs are kept. Default: results of the checkout, else ./results.",
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False


@takes(CompareOptions, JudgeOptions)
def compare(what: CompareOptions, judge: JudgeOptions) -> None:
    """Hold a run against golden values, or against another run, and exit with the verdict."""
    from harness.analysis.compare import compare_runs, find_reference
    from harness.analysis.outcome import comparison_outcome
    from harness.cli.asking import gate_options, window_options
    from harness.errors import BadRequestError
    from harness.records.store import read_run

    gate = gate_options(judge)
    if what.golden is not None and gate.golden_values_path is not None:
        raise BadRequestError(
            f"GOLDEN {what.golden} and --golden_values_path {gate.golden_values_path} are two answers; give one"
        )
    gate = replace(gate, require_golden=gate.require_golden or what.golden is not None)
    records = tuple(read_run(reference, what.results_dir) for reference in (what.run, *(what.repeat or ())))
    search = find_reference(what.golden, records[0], gate, what.results_dir)
    metrics, comparison = compare_runs(records, search, gate, window_options(judge))
    verdict = comparison_outcome(comparison, fail_on_improvement=gate.fail_on_improvement)
    if what.as_json:
        from harness.report import json

        print(json.text(json.compare_document(records, metrics, comparison, verdict)))
    else:
        from rich.console import Console

        from harness.report.terminal import print_compare

        print_compare(Console(), records, comparison, verdict)
    raise typer.Exit(int(verdict[1]))
