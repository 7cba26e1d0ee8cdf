"""`mbr-perf history`: shows the metrics of a case over the nights, and adds runs."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli import completion
from harness.cli.commands import App, HelpedGroup, takes
from harness.cli.options import GoldenDir, Json, Results, flag, option, options
from harness.show.answer import answer

if TYPE_CHECKING:
    from harness.show.json import Document


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
    fingerprint: Annotated[str | None, option("HEX", "Runs with these settings. Default: those of the newest "
        "run.")] = None
    csv: Annotated[bool, flag("Print CSV, a row per run.")] = False
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
    from harness.errors import Problems
    from harness.history.cases import case_summaries
    from harness.history.run import case_history, metric_named, runs_csv
    from harness.history.show import HistoryDocument, case_page, cases_page
    from harness.history.store import survey_history
    from harness.records import folders
    from harness.show.page import visible
    from harness.show.terminal import narrate

    problems = Problems()
    if asked.case is None and asked.fingerprint is not None:
        problems.add("--fingerprint: name a case", "mbr-perf history CASE ...")
    if asked.csv and asked.as_json:
        problems.add("--csv and --json both want stdout", "leave out one of them")
    problems.raise_if_any()
    results, metric = folders.results_dir(asked.results_dir), metric_named(asked.metric)
    document: Document
    if asked.case is None:
        reading = survey_history(results)
        records, notes = reading.records, reading.notes
        cases = case_summaries(records, metric)
        about = {"results_dir": results, "metric": metric.name, "unit": metric.unit, "notes": notes}
        document, page = HistoryDocument.of(cases=cases, **about), cases_page(cases, metric, results)
    else:
        history, notes = case_history(asked.case, metric, results, asked.fingerprint, asked.golden_dir)
        records = tuple(record for night in history.nights for record in night.records)
        document, page = history.model_copy(update={"notes": (*history.notes, *notes)}), case_page(history)
    narrate(*notes)
    if asked.csv:
        print(visible(runs_csv(records)), end="")
    else:
        answer(lambda: document, lambda: page, as_json=asked.as_json)


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
