"""`mbr-perf history`: shows the metrics of a case over the nights, and adds runs."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli import completion
from harness.cli.commands import App, HelpedGroup, takes
from harness.cli.options import GoldenDir, Json, Results, option, options
from harness.show.answer import answer

if TYPE_CHECKING:
    from harness.history.cases import CaseHistory


class HistoryGroup(HelpedGroup):
    """Read `history CASE` as `history show CASE`. A word that is not a sub-command is a case."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the missing word ``show``."""
        return super().parse_args(ctx, args if args[:1] and args[0] in self.commands else ["show", *args])


app = App(cls=HistoryGroup, help="Figures of a case over the nights. `history CASE` is `history show CASE`.")


# fmt: off
@options()
class HistoryOptions:
    """Which case and figure, which nights, and where to."""

    case: Annotated[str | None, typer.Argument(metavar="CASE",
        help="A case, its name in a suite, or a part of either that fits only one case. Default: all cases.")] = None
    metric: Annotated[str, option("NAME", "tflops_per_gpu, step_time_s, peak_allocated_bytes, ...")] = "tflops_per_gpu"
    last: Annotated[int | None, option("N", "Show the newest N nights.", min=1)] = None
    fingerprint: Annotated[str | None, option("HEX", "Runs with these settings. Default: those of the newest "
        "run.")] = None
    csv: Annotated[str | None, option("FILE|-", "Also write CSV, a row per run. With -, print only the CSV.")] = None
    chart: Annotated[Path | None, option("FILE.html|svg", "Also draw the trend.")] = None
    golden_dir: GoldenDir = None
    results_dir: Results = None
    as_json: Json = False
# fmt: on


@app.command()
@takes(HistoryOptions)
def show(asked: HistoryOptions) -> None:
    """List all cases. For one case, show every night and its level changes.

    A change point has three nights on either side. You may leave out `show`.
    """
    _require_sense(asked)
    if asked.case is None:
        _show_cases(asked)
    else:
        _show_case(asked, asked.case)


@app.command()
def add(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", autocompletion=completion.stored,
        help="Folders of runs, sweeps or nights, record files, or ids.")],
    results_dir: Results = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Add runs to history, each once. A sweep or a night adds all its runs, failed and suspect runs too.

    `mbr-perf nightly` does this by itself.
    """
    from harness.history.show import AddedDocument, added_page
    from harness.history.store import add_runs
    from harness.records import folders

    additions = add_runs(runs, folders.results_dir(results_dir))
    answer(lambda: AddedDocument.of(runs=additions), lambda: added_page(additions), as_json=as_json)


def _require_sense(asked: HistoryOptions) -> None:
    from harness.errors import Problems
    from harness.show.svg import require_file

    problems = Problems()
    given = [f"--{name}" for name in ("chart", "last", "fingerprint") if getattr(asked, name) is not None]
    if asked.case is None and given:
        problems.add(f"{', '.join(given)}: name a case", "mbr-perf history CASE ...")
    if asked.csv == "-" and asked.as_json:
        problems.add("--csv - and --json both want stdout", "name a file for one of them")
    if asked.chart is not None:
        with problems.collecting():
            require_file("--chart", asked.chart, (".html", ".svg"))
    problems.raise_if_any()


def _show_cases(asked: HistoryOptions) -> None:
    from harness.history.cases import case_summaries
    from harness.history.run import metric_named, runs_csv
    from harness.history.show import HistoryDocument, cases_page
    from harness.history.store import survey_history
    from harness.records import folders

    results, metric = folders.results_dir(asked.results_dir), metric_named(asked.metric)
    reading = survey_history(results)
    cases = case_summaries(reading.records, metric)
    _narrate(reading.notes)
    if asked.csv is not None:
        _write_csv(asked.csv, runs_csv(reading.records))
    about = {"results_dir": results, "metric": metric.name, "unit": metric.unit, "notes": reading.notes}
    if asked.as_json or asked.csv != "-":
        answer(
            lambda: HistoryDocument.of(cases=cases, **about),
            lambda: cases_page(cases, metric, results),
            as_json=asked.as_json,
        )


def _show_case(asked: HistoryOptions, case: str) -> None:
    from harness.cli.requests import read
    from harness.history.run import HistoryRequest, case_history, metric_named
    from harness.history.show import case_page
    from harness.records import folders
    from harness.show import json
    from harness.show.terminal import show_page

    results, metric = folders.results_dir(asked.results_dir), metric_named(asked.metric)
    history, notes = case_history(read(HistoryRequest, asked, results=results, metric=metric, case=case))
    _narrate(notes)
    _write_files(asked, history)
    if asked.as_json:
        json.answer(history.model_copy(update={"notes": (*history.notes, *notes)}))
    elif asked.csv != "-":
        show_page(case_page(history))


def _write_files(asked: HistoryOptions, history: "CaseHistory") -> None:
    from harness.history.run import runs_csv

    if asked.chart is not None:
        from harness.history.chart import write_trend

        _narrate([f"chart: {write_trend(history, asked.chart)}"])
    if asked.csv is not None:
        _write_csv(asked.csv, runs_csv([record for night in history.nights for record in night.records]))


def _write_csv(where: str, text: str) -> None:
    from harness.history.run import write_csv
    from harness.show.page import visible

    if where == "-":
        print(visible(text), end="")
    else:
        _narrate([f"CSV: {write_csv(Path(where), text)}"])


def _narrate(lines: Iterable[str]) -> None:
    from harness.show.terminal import narrate

    narrate(*lines)
